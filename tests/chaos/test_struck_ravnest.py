"""Real processes of Ravnest over TCP, struck in each phase: the replay has the run's bits, and no step is left out."""

import random
import re
import signal
from contextlib import ExitStack

import pytest

from pipelined.ravnest.stage.orders import read_orders
from tests.forked import forked

STEPS = 100
"""So many that a node which comes after the first one joins in time beside other work."""
MODEL = "--layers 2 --d-model 16 --heads 2 --seq 16"
FLAGS = f"{MODEL} --batch 8 --microbatch 4 --lr 1e-2 --average-every 4 --steps {STEPS} --lease 5"
MAX_S = 200
"""Seconds of one run. A run without faults takes 15 s on two cores, and a silent node costs it two leases."""
NEAR = "tcp://127.0.0.1:0?delay=5ms"
ALIKE = ("--ram", "1G", "--bandwidth", "1gbit", "--flops", "0")
"""What each node is told, so that it measures nothing, and the plan is the same each time."""
STRIKES = ("SIGKILL", "SIGSTOP", "CUT")
STEP = re.compile(r"^step (\d+): loss (\S+), cluster", re.M)
AGAIN = "left before the last step"
"""What `train` says of a node that was lost without a backup."""
pytestmark = pytest.mark.timeout(2 * MAX_S)

ALONE = 3, 0, "--clusters 2"
BACKED = 5, 0, "--clusters 2 --backups 2"
ALL_BACKED = 4, 0, "--clusters 1 --backups 2"
NEW_BACKUP = 3, 1, "--clusters 2 --newcomers backup"
LATE_CLUSTER = 2, 1, "--newcomers cluster"
"""Nodes, nodes that come while the others train, flags of `train`."""


def ravnest(*words, faults=("", "")):
    """A process of Ravnest that may be struck; `faults` as `struck_node` takes them."""
    return forked("tests.ravnest.struck_node", *faults, *words, merged=True)


def struck(path, fault, nodes, late, flags, only_late=False):
    """Train while one node, the first one that it befalls, is struck; returns what `train` said.

    A node that is stopped or cut off continues as soon as `train` says that a node left.
    """
    orders, hit = path / "orders", path / "struck"
    with ExitStack() as stack:
        start = lambda *words, fault="": stack.enter_context(ravnest(*words, faults=(hit, fault)))  # noqa: E731
        coordinator = start("coordinator", "--listen", "tcp://127.0.0.1:0")
        (address,) = re.findall(r"tcp://\S+\d", coordinator.stdout.readline())
        at = ["--coordinator", address]
        its = ["serve", *at, *ALIKE, "--orders", orders, "--listen", NEAR, "--name"]
        everyone = [start(*its, f"n{number}", fault="" if only_late else fault) for number in range(nodes)]
        everyone += [start("late", *its, f"late{number}", fault=fault) for number in range(late)]
        said = []
        train = start("train", *at, "--nodes", nodes, *FLAGS.split(), *flags.split())
        for line in train.stdout:
            said.append(line)
            if " left " in line:
                for each in everyone:
                    each.send_signal(signal.SIGCONT)
        text = "".join(said)
        assert train.wait() == 0, text
    hits = [hit, path / "struck-second"][: fault.count("+") + 1]
    assert all(each.exists() for each in hits), f"a node was not struck\n{text}"
    check(text, orders)
    if late == 0 and have_backups(orders, [each.read_text() for each in hits]):
        assert AGAIN not in text and len(STEP.findall(text)) == STEPS, text
    return text


def have_backups(orders, names):
    """Whether each of these nodes held a place with another one, in the clusters that were formed first."""
    first = min(read_orders(orders), key=lambda each: each.generation.number).generation
    places = [first.place_of(each) for name in names for each in first.all_holders if each.name == name]
    return len({*places}) == len(names) and all(first.backup_at(place) for place in places)


def check(said, orders):
    """The replay trains every step, shows the losses that `train` showed last, and has the run's average."""
    with ravnest("replay", "--orders", orders) as replay:
        replayed = replay.stdout.read()
        assert replay.wait() == 0, said + replayed
    shown, again = (STEP.findall(text) for text in (said, replayed))
    assert dict(again) == dict(shown) and {*map(int, dict(again))} == {*range(STEPS)}, said + replayed
    assert AGAIN in said or len(again) == len(shown) == STEPS, said
    (average,) = re.findall(r"^average (\w+)$", said, re.M)
    assert replayed.endswith(f"average {average}\n"), said


STRUCK = {
    "chunk sent:2:SIGKILL": NEW_BACKUP,
    "chunk received:3:SIGSTOP": NEW_BACKUP,
    "backward:3:SIGKILL+take-over:1:SIGKILL": ALL_BACKED,
}
"""Either node while a new backup gets its state; and of each of both places one node, the second one because the first
is seen to be lost.
"""


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("fault", STRUCK)
def test_a_node_may_be_struck_while_a_backup_gets_its_state_or_takes_over(tmp_path, fault):
    said = struck(tmp_path, fault, *STRUCK[fault])
    assert fault != "chunk sent:2:SIGKILL" or AGAIN in said, said


@pytest.mark.in_turns(2)
@pytest.mark.full
@pytest.mark.parametrize("second", STRIKES)
@pytest.mark.parametrize("first", STRIKES)
@pytest.mark.parametrize("phase", ["forward:3", "one copy:5"])
def test_a_neighbour_may_be_struck_in_any_way_while_a_backup_takes_over(tmp_path, phase, first, second):
    struck(tmp_path, f"{phase}:{first}+take-over:1:{second}", *ALL_BACKED)


@pytest.mark.full
@pytest.mark.parametrize("how", STRIKES)
@pytest.mark.parametrize("times", [1, 3, 6])
@pytest.mark.parametrize("phase", ["chunk sent", "chunk received"])
def test_either_node_may_be_struck_at_any_chunk_of_the_state(tmp_path, phase, times, how):
    struck(tmp_path, f"{phase}:{times}:{how}", *NEW_BACKUP)


@pytest.mark.full
@pytest.mark.parametrize("how", STRIKES)
@pytest.mark.parametrize("setting", [NEW_BACKUP, LATE_CLUSTER], ids=["new backup", "late cluster"])
@pytest.mark.parametrize("phase", ["joining", "opening"])
def test_a_node_may_be_struck_as_it_joins(tmp_path, phase, setting, how):
    struck(tmp_path, f"{phase}:1:{how}", *setting, only_late=True)


@pytest.mark.full
@pytest.mark.parametrize("how", STRIKES)
@pytest.mark.parametrize("phase", ["moments sent", "moments received"])
def test_a_late_cluster_and_its_donor_may_be_struck_while_it_gets_the_moments(tmp_path, phase, how):
    struck(tmp_path, f"{phase}:3:{how}", *LATE_CLUSTER)


@pytest.mark.full
@pytest.mark.parametrize("how", STRIKES)
@pytest.mark.parametrize("setting", [ALONE, BACKED], ids=["alone", "with backups"])
@pytest.mark.parametrize("phase", ["forward", "backward", "snapshot", "commit", "difference"])
def test_a_node_may_be_struck_in_any_phase(tmp_path, phase, setting, how):
    struck(tmp_path, f"{phase}:3:{how}", *setting)


@pytest.mark.full
@pytest.mark.parametrize("how", STRIKES)
@pytest.mark.parametrize("times", [1, 5, 20])
def test_a_node_may_be_struck_when_one_holder_of_the_next_place_alone_has_its_message(tmp_path, times, how):
    struck(tmp_path, f"one copy:{times}:{how}", *BACKED)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(30))
def test_a_node_may_be_struck_at_any_moment_of_the_rings(tmp_path, seed):
    draw = random.Random(seed)
    struck(tmp_path, f"ring:{draw.randint(1, 40)}:{draw.choice(STRIKES)}", *draw.choice([ALONE, BACKED]))
