"""Two workers take all files between them, and nothing runs beside a file that runs alone."""

import random
from collections import deque
from types import SimpleNamespace

import pytest

from tests.alone import ALONE, runs_alone
from tests.launching import ROOT
from tests.side_by_side import SideBySide


class Worker:
    """What the scheduler knows of a worker of pytest-xdist, which holds its last test until it knows the next."""

    def __init__(self, number):
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.queue = deque()
        self.shutting_down = False

    def send_runtest_some(self, indices):
        self.queue.extend(indices)

    def shutdown(self):
        self.shutting_down = True

    @property
    def running(self):
        """The test that it runs now, if it has one and knows the next, or that it was the last."""
        return self.queue[0] if len(self.queue) > 1 or (self.queue and self.shutting_down) else None


def play(names, draw, workers=2):
    """Run tests of these names on workers of any speed; yields the names of those that run at the same time."""
    everyone = [Worker(number) for number in range(workers)]
    option = SimpleNamespace(loadscopereorder=True)
    scheduler = SideBySide(SimpleNamespace(option=option, getvalue=lambda name: [f"{workers}*popen"]))
    for worker in everyone:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, names)
    scheduler.schedule()
    while busy := [worker for worker in everyone if worker.running is not None]:
        yield [names[worker.running] for worker in busy]
        ended = draw.choice(busy)
        scheduler.mark_test_complete(ended, ended.queue.popleft())
    assert not scheduler.has_pending and all(worker.shutting_down for worker in everyone)


@pytest.mark.parametrize(("beside", "alone"), [(1, 0), (7, 0), (0, 1), (0, 3), (1, 1), (2, 3), (7, 1), (7, 3)])
def test_every_test_runs_and_those_that_run_alone_run_beside_no_other(beside, alone):
    files = [f"tests/unit/test_{number}.py" for number in range(beside)]
    files += [f"tests/unit/pipelined/process/test_{number}.py" for number in range(alone)]
    draw = random.Random(f"{beside} {alone}")
    for _ in range(50):
        names = [f"{file}::test_{case}" for file in files for case in range(draw.randint(1, 5))]
        ran = set()
        for together in play(names, draw):
            assert len(together) == 1 or not any(map(runs_alone, together))
            ran |= set(together)
        assert ran == set(names)


def test_the_files_that_run_alone_are_there():
    assert [name for name in ALONE if not (ROOT / name).exists()] == []
