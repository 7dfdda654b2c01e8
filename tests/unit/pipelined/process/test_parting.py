"""Ranks of one node wait for each other before they go, and not for ever."""

import subprocess
import sys
from threading import Thread

import pytest

from pipelined.process.parting import part


def test_one_that_is_alone_waits_for_nobody():
    assert part(0, 1, 60.0)


@pytest.mark.parametrize("ranks", [2, 5])
def test_processes_of_one_parent_all_go_when_all_are_there(ranks):
    script = f"import sys; from pipelined.process.parting import part; print(part(int(sys.argv[1]), {ranks}, 60.0))"
    processes = [
        subprocess.Popen([sys.executable, "-c", script, str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    assert [process.communicate(timeout=60)[0].strip() for process in processes] == ["True"] * ranks


def test_who_does_not_come_is_given_up():
    assert not part(0, 2, 0.01)


def test_one_of_several_that_do_not_come_is_given_up_by_all():
    found = []
    ranks = [Thread(target=lambda rank=rank: found.append(part(rank, 4, 0.2))) for rank in (0, 1, 3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert found == [False] * 3


def test_a_rank_whose_name_is_taken_waits_its_time_and_goes():
    first = Thread(target=part, args=(0, 2, 0.2))
    first.start()
    assert not part(0, 2, 0.01)
    first.join()
