"""Places with backups under fire: nothing is lost, no cluster ends, and the bits are those of plain loops."""

import asyncio
from dataclasses import replace

import pytest

from pipelined.aio.clock import run_virtual
from pipelined.ravnest.node.backup import PlaceReplica
from pipelined.ravnest.planning.backups import STEPS_APART
from pipelined.ravnest.planning.stage_sizes import LayerSize, StageRules, StageSizes
from pipelined.ravnest.stage.orders import OrderDirectory, read_orders
from tests.ravnest.faults import LEASE_S, Fault, Phase
from tests.ravnest.story import Story, tell
from tests.ravnest.test_overlapped import OVERLAPPED, recorded, replayed

LATE_BESIDE_BACKUP = 1081
"""A node waits to form a late cluster when the first node of a place has left, and its backup goes on."""


DETECTION_S = {Fault.KILL: 1.0, Fault.FREEZE: LEASE_S, Fault.CUT_OFF: LEASE_S}
"""At most until a lost node is seen: by its closed connection, or at the end of its lease."""


class Backed(Story):
    """Two clusters of three nodes, and a backup for each; nodes that come back wait."""

    def __init__(self, nodes=6, backups=3, **others):
        super().__init__(nodes, backups=backups, newcomers="cluster", **others)
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
    (generation,) = story.chain
    assert len(generation.backups) == 3


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("fault", [Fault.KILL, Fault.FREEZE, Fault.CUT_OFF])
@pytest.mark.parametrize("phase", Phase)
def test_nothing_is_lost_with_a_node_that_has_a_backup(fault, phase):
    story = Backed()
    run_virtual(story.run(story.befall(fault, phase=phase, seconds=2.5, names=["n0", "n1"])))
    assert len([*story.chain]) == 1, "clusters ended"
    assert all(len(losses) == 1 for losses in story.shown.values()), "a step was trained again"
    assert story.stall <= 2 * DETECTION_S[fault], "the stall is longer than twice the detection"


def test_a_node_that_lost_a_connection_leaves_at_once_what_its_backup_shows(monkeypatch):
    """It stayed listed for a lease, and until then its backup, which trained on, wrote no step."""
    monkeypatch.setattr("tests.ravnest.story.LEASE_S", 8.0)
    story = Backed(3, 1, clusters=1)

    async def lost():
        await story.view.wait_for(lambda: story.view.progress)
        (backup,), (row,) = story.view.generation.backups, story.view.generation.clusters
        assert backup.stage == 0
        await story.befall(Fault.RESET, seconds=0.1, names=[row[0].holder.name, row[1].holder.name])

    run_virtual(story.run(lost()))
    assert story.stall < 1.0 and len([*story.chain]) == 1


def test_train_names_the_node_that_died_not_those_of_a_place_with_a_backup_that_lost_it():
    """Both lost their connection with it, and left at once, each because the other one was there."""
    story, died = Backed(3, 1, clusters=1, steps=30), []

    async def lost():
        await story.view.wait_for(lambda: story.view.progress)
        died.append(story.view.generation.clusters[0][-1].holder.name)
        story._end(died[0])
        await story.view.wait_for(lambda: died[0] not in story.view.nodes)
        story._start(died[0])

    run_virtual(story.run(lost()))
    assert any(each.startswith(f"{died[0]} left before the last step") for each in story.told), story.told


def test_a_restart_of_train_forgets_no_loss_and_counts_none_twice():
    story, died = Backed(3, 1, clusters=1, steps=30), []

    async def lost():
        await story.view.wait_for(lambda: story.view.progress)
        (backup,) = story.view.generation.backups
        died.append(story.view.generation.clusters[0][backup.stage].holder.name)
        story._end(died[0])
        await story.view.wait_for(lambda: story.view.departures.count(died[0]))
        await story.befall(Fault.KILL_TRAIN, seconds=0.1)

    run_virtual(story.run(lost()))
    assert {name: times for name, (times, _) in story.view.departures.names.items()} == {died[0]: 1}


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("overlapped", [True, False])
def test_both_nodes_of_a_place_stop_alike_where_one_has_not_opened_the_world_of_all_clusters(tmp_path, overlapped):
    """The other one had, and began to train; it waited for its backup, which trained nothing, for ever."""

    async def befall(story):
        await story.view.wait_for(lambda: story.view.generation)
        generation = story.view.generation
        (backup,), number = generation.backups, 1 - generation.backups[0].cluster
        for place in generation.clusters[number]:
            story.network.cut(backup.holder.name, place.holder.name)
        await story.sleep(LEASE_S)
        story._end(generation.clusters[number][0].holder.name)

    training = replace(OVERLAPPED, overlapped=overlapped)
    told, orders = recorded(tmp_path, training, then=befall, nodes=4, backups=1, ahead=2)
    assert any("clusters that train on: 1" in each for each in told.told), told.told
    assert told.ends == [f"average {replayed(training, orders)[0]}"]


@pytest.mark.in_turns(4)
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
    directory, backups = OrderDirectory(path, "task"), 1 + seed % 4
    told = tell(seed, training=training, ahead=1 + seed % 3, backups=backups, order_directory=directory)
    assert told.ends[-1] == f"average {replayed(training, read_orders(path))[0]}", told.told


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("seed", range(4))
def test_after_random_faults_the_replay_has_the_same_bits(tmp_path, seed):
    tell_and_replay(tmp_path, seed)


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(4, 504, 5))
def test_after_more_random_faults_the_replay_has_the_same_bits(tmp_path, first):
    for seed in range(first, first + 5):
        tell_and_replay(tmp_path / str(seed), seed)


@pytest.mark.in_turns(4)
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
    assert len(first.clusters) == 1 and last.continuation.late_clusters == 1 and len(last.backups) == 1


def test_both_nodes_of_a_place_code_alike_and_the_replay_has_the_same_bits(tmp_path):
    training = replace(OVERLAPPED, numerics=replace(OVERLAPPED.numerics, compress="blockwise8"))
    befall = Fault.KILL, {"moment": 0.83, "seconds": 9.0, "names": ["n1", "n0"]}
    told, orders = recorded(tmp_path, training, befall, nodes=6, ahead=3, backups=3)
    assert told.ends == [f"average {replayed(training, orders)[0]}"] and len(orders) == 1
    assert all(len(losses) == 1 for losses in told.shown.values())
    assert replayed(OVERLAPPED, orders)[0] not in told.ends[0], "the codec changes nothing"


LONG = replace(OVERLAPPED, steps=60)
CHUNK = 256
"""Bytes of a chunk of a stage's state, so that a new backup gets it in many messages."""


async def replaced(story):
    """The first backup dies for ever, and "late" waits; returns the clusters in which that is a backup, and where."""
    await story.view.wait_for(lambda: story.view.progress)
    old = story.view.generation.backups[0]
    story._end(old.holder.name)
    story._start("late")
    await story.view.wait_for(lambda: any(each.holder.name == "late" for each in story.view.generation.backups))
    new = next(each for each in story.view.generation.backups if each.holder.name == "late")
    return story.view.generation, new


def first_of(generation, new):
    return generation.clusters[new.cluster][new.stage].holder.name


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("kind", ["overlapped", "blocking"])
@pytest.mark.parametrize("clusters", [1, 2])
def test_a_node_that_waits_replaces_a_lost_backup_and_then_takes_over_from_the_first_node(tmp_path, kind, clusters):
    """It has the state of the stage from that one; no step is trained again, and the replay has the run's bits."""
    training = replace(LONG, overlapped=kind == "overlapped")

    async def befall(story):
        now, new = await replaced(story)
        await story.view.wait_for(lambda: any(each.generation == now.number for each in story.view.progress.values()))
        await story.sleep(0.2)
        story._end(first_of(now, new))

    kept = {"nodes": 2 * clusters + 1, "clusters": clusters, "ahead": 2, "backups": 1}
    told, orders = recorded(tmp_path, training, then=befall, **kept)
    assert all(len(losses) == 1 for losses in told.shown.values()), told.told
    assert not any("left before the last step" in each for each in told.told), told.told
    assert told.ends == [f"average {replayed(training, orders)[0]}"]


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("room", [2, 3])
def test_no_more_microbatches_wait_at_a_new_backup_than_its_ram_holds_over_a_slow_line(monkeypatch, room):
    """The state comes in many small messages, each after the reply to the one before; the place waits meanwhile."""
    monkeypatch.setattr("pipelined.ravnest.averaging.state_transfer.CHUNK", CHUNK // 4)
    send_pace, steps, apart = PlaceReplica._send_pace, {False: 0, True: 0}, []

    async def counted(self, number):
        if "late" in story.tasks:
            steps[self.holder.is_backup] = number
            apart.append(steps[False] - steps[True])
        await send_pace(self, number)

    monkeypatch.setattr(PlaceReplica, "_send_pace", counted)
    layers = tuple(LayerSize(100, 8, 1 << 10, 1.0) for _ in range(LONG.model.layers))
    rules = StageRules(ahead=1, behind=STEPS_APART)
    sizes, giving = StageSizes(layers, rules), StageSizes(layers, replace(rules, gives=True))
    ram = sizes.with_backup(0, 1, giving.of_cut([range(1)], [1])[0]) + (room - STEPS_APART) * sizes.waiting(0, 1)
    beside = (ram - sizes.with_backup(0, 1, sizes.receiving(0, 1))) // sizes.waiting(0, 1)
    story = Story(3, training=LONG, clusters=1, backups=1, ram=ram, ahead=1, delay=0.03)
    story._request = replace(story._request, layers=layers, rules=rules)
    run_virtual(story.run(replaced(story)))
    (new,) = story.view.generation.backups
    assert new.stage == 0 and new.room == STEPS_APART + beside == max(apart), (new, beside, max(apart), story.told)


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("dies", ["first", "late"])
@pytest.mark.parametrize("message", [1, 2, 9])
def test_either_node_may_die_while_the_state_is_on_its_way_to_a_new_backup(monkeypatch, tmp_path, dies, message):
    """With the first node its cluster is lost at once, as nothing else has the state; with the new one nothing is."""
    monkeypatch.setattr("pipelined.ravnest.averaging.state_transfer.CHUNK", CHUNK)

    async def befall(story):
        now, new = await replaced(story)
        first = first_of(now, new)
        await framed(story, first, message)
        story._end(first if dies == "first" else "late")
        story._start("later")

    told, orders = recorded(tmp_path, LONG, then=befall, nodes=5, clusters=2, ahead=2, backups=1)
    assert told.ends == [f"average {replayed(LONG, orders)[0]}"]
    assert any("left before the last step" in each for each in told.told) == (dies == "first"), told.told


@pytest.mark.in_turns(4)
def test_a_new_backup_leaves_at_once_when_the_first_node_is_removed_before_it_has_sent_the_state(monkeypatch, tmp_path):
    """It is listed in the place, and has nothing to go on with: its cluster would wait for it for a further lease."""
    monkeypatch.setattr("pipelined.ravnest.averaging.state_transfer.CHUNK", CHUNK)
    waited = []

    async def befall(story):
        now, new = await replaced(story)
        first, listed = first_of(now, new), story.view.nodes["late"]
        await framed(story, first, 2)
        story.network.freeze(first)
        await story.view.wait_for(lambda: first not in story.view.nodes)
        removed = asyncio.get_running_loop().time()
        await story.view.wait_for(lambda: story.view.nodes.get("late") != listed)
        waited.append(asyncio.get_running_loop().time() - removed)
        story.network.thaw(first)

    told, orders = recorded(tmp_path, LONG, then=befall, nodes=5, clusters=2, ahead=2, backups=1)
    assert waited[0] < LEASE_S / 4, told.told
    assert told.ends == [f"average {replayed(LONG, orders)[0]}"]


async def framed(story, first, number):
    """Wait until this many messages of a node are in the mailbox of "late"."""
    found, seen = asyncio.get_running_loop().create_future(), []

    def look(event):
        if (event.source, event.destination) == (first, "late") and "world/message" in event.key:
            seen.append(event)
            if len(seen) == number and not found.done():
                found.set_result(None)

    story.network.intercept(look)
    await found


def seconds_a_step(backups):
    """In the middle of one cluster of three stages over slow lines, with as many microbatches alive as they need."""
    training = replace(OVERLAPPED, steps=40)
    story = Backed(3 + backups, backups, training=training, clusters=1, ahead=7, delay=0.09)
    run_virtual(story.run())
    return (story.moments[30] - story.moments[10]) / 20


def test_a_backup_for_every_node_costs_at_most_a_tenth_of_the_throughput():
    assert seconds_a_step(3) <= 1.1 * seconds_a_step(0)
