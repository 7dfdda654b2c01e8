"""Places with backups under fire: nothing is lost, no cluster ends, and the bits are those of plain loops."""

import asyncio
from dataclasses import replace

import pytest

from pipelined.aio.clock import run_virtual
from pipelined.ravnest.orders import OrderDirectory, read_orders
from tests.ravnest.story import Fault, Phase, Story, tell
from tests.ravnest.test_overlapped import OVERLAPPED, recorded, replayed

LATE_BESIDE_BACKUP = 1081
"""A node waits to form a late cluster when the first node of a place has left, and its backup goes on."""


class Backed(Story):
    """Two clusters of three nodes, and a backup for each; attributes `stalls`: seconds between shown steps."""

    def __init__(self, nodes=6, backups=3, **others):
        super().__init__(nodes, backups=backups, **others)
        self.moments = []

    def _show(self, cluster, progress):
        super()._show(cluster, progress)
        self.moments.append(asyncio.get_running_loop().time())

    @property
    def stall(self):
        return max(after - before for before, after in zip(self.moments, self.moments[1:], strict=False))


def test_backups_train_beside_their_places_and_change_no_bit():
    story = Backed()
    run_virtual(story.run())
    (clusters,) = story.chain
    assert len(clusters.backups) == 3


@pytest.mark.parametrize("fault", [Fault.KILL, Fault.FREEZE, Fault.CUT_OFF])
@pytest.mark.parametrize("phase", Phase)
def test_nothing_is_lost_with_a_node_that_has_a_backup(fault, phase):
    story = Backed()
    run_virtual(story.run(story.befall(fault, phase=phase, seconds=2.5, names=["n0", "n1"])))
    assert len([*story.chain]) == 1, "clusters ended"
    assert all(len(losses) == 1 for losses in story.shown.values()), "a step was trained again"


def test_a_node_that_lost_a_connection_leaves_at_once_what_its_backup_shows(monkeypatch):
    """It stayed listed for a lease, and until then its backup, which trained on, wrote no step."""
    monkeypatch.setattr("tests.ravnest.story.LEASE_S", 8.0)
    story = Backed(3, 1, clusters=1)

    async def lost():
        await story.view.wait_for(lambda: story.view.progress)
        (backup,), (row,) = story.view.clusters.backups, story.view.clusters.rows
        assert backup.stage == 0
        await story.befall(Fault.RESET, seconds=0.1, names=[row[0].name, row[1].name])

    run_virtual(story.run(lost()))
    assert story.stall < 1.0 and len([*story.chain]) == 1


@pytest.mark.parametrize("seed", [*range(6), LATE_BESIDE_BACKUP])
def test_random_faults_leave_the_bits_of_plain_loops(seed):
    tell(seed, backups=1 + seed % 3)


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(6, 1006, 20))
def test_more_random_faults_leave_the_bits_of_plain_loops(first):
    for seed in range(first, first + 20):
        tell(seed, backups=1 + seed % 3)


def tell_and_replay(path, seed):
    """Several microbatches alive, so orders differ where they may, and rounds beside training on odd seeds."""
    training = replace(OVERLAPPED, overlapped=seed % 2 == 1)
    told = tell(seed, training=training, ahead=1 + seed % 3, backups=1 + seed % 4, orders=OrderDirectory(path, "task"))
    assert told.ends[-1] == f"average {replayed(training, read_orders(path))[0]}", told.told


@pytest.mark.parametrize("seed", range(4))
def test_after_random_faults_the_replay_has_the_same_bits(tmp_path, seed):
    tell_and_replay(tmp_path, seed)


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(4, 504, 5))
def test_after_more_random_faults_the_replay_has_the_same_bits(tmp_path, first):
    for seed in range(first, first + 5):
        tell_and_replay(tmp_path / str(seed), seed)


@pytest.mark.parametrize("moment", [0.31, 0.57, 0.83, 1.19, 1.47])
def test_a_node_that_dies_beside_its_backup_changes_no_bit_at_any_moment(tmp_path, moment):
    """The replay follows the orders of the nodes that are left; each place of both clusters has a backup."""
    befall = Fault.KILL, {"moment": moment, "seconds": 9.0, "names": ["n1", "n0"]}
    told, orders = recorded(tmp_path, OVERLAPPED, befall, nodes=6, ahead=3, backups=3)
    assert told.ends == [f"average {replayed(OVERLAPPED, orders)[0]}"] and len(orders) == 1
    assert all(len(losses) == 1 for losses in told.shown.values())


def test_one_cluster_of_which_every_place_has_a_backup_stops_at_a_round_so_that_a_late_one_joins_it():
    """Both nodes of the place stop after the same step, whichever saw first that the clusters end."""
    story = Story(2, backups=1, steps=24, clusters=None)
    run_virtual(story.run(story.befall(Fault.JOIN, phase=Phase.TRAINING, seconds=0.0, names=["n0"])))
    first, last = story.chain
    assert len(first.rows) == 1 and last.going.late == 1 and len(last.backups) == 1


def seconds_a_step(backups):
    """In the middle of one cluster of three stages over slow lines, with as many microbatches alive as they need."""
    training = replace(OVERLAPPED, steps=40)
    story = Backed(3 + backups, backups, training=training, clusters=1, ahead=7, delay=0.09)
    run_virtual(story.run())
    return (story.moments[30] - story.moments[10]) / 20


def test_a_backup_for_every_node_costs_at_most_a_tenth_of_the_throughput():
    assert seconds_a_step(3) <= 1.1 * seconds_a_step(0)
