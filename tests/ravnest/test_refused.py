"""A slice of another length, or with numbers that are not finite, ends its round, and no training."""

from dataclasses import replace

import pytest
import torch

from pipelined.aio.clock import run_virtual
from pipelined.ravnest.averaging.rounds import Rounds
from pipelined.ravnest.averaging.state_transfer import MomentsTransfer
from pipelined.ravnest.node.cluster_records import ClusterRecords
from pipelined.ravnest.stage.held_stage import HeldStage
from tests.ravnest.faults import Fault, Phase
from tests.ravnest.story import Story
from tests.ravnest.test_backups import LONG, first_of, replaced
from tests.ravnest.test_overlapped import OVERLAPPED, recorded, replayed
from transports.rpc.world import RankHolder, RpcTransport

TRAININGS = {
    kind: replace(OVERLAPPED, steps=24, overlapped=kind == "overlapped") for kind in ("overlapped", "blocking")
}
LAST = 4
"""Of the rounds of these trainings, by two clusters."""
NAN = b"\0\0\xc0\x7f"
"""A float32 on the wire."""


def spoil_snapshot(patch, rank, number, late=False):
    """One number of one rank's snapshot for a round is NaN; with a backup both of its holders have it."""
    original, first = Rounds.begin, set()

    async def begin(rounds, copies=1):
        snapshots = await original(rounds, copies)
        is_due = rounds.ended_round + 1 == number and (not late or rounds._moments)
        if is_due and isinstance(rounds._decisions, ClusterRecords):  # else of a replay
            first.add(min({rounds._decisions._generation.number, *first}))
            if rounds._decisions._generation.number in first and rounds._senders._rank == rank:
                for snapshot in snapshots:
                    snapshot[3] = torch.nan
        return snapshots

    patch.setattr(Rounds, "begin", begin)


def spoil_buffer(patch, rank, message, change):
    """Change the bytes of one message of a rank in the rings."""
    original, left, first = RpcTransport.send_buffer, [message], FirstWorld()

    async def send_buffer(end, peer, channel, buffer, **others):
        if end in first and end.rank == rank:
            left[0] -= 1
            if left[0] == 0:
                buffer = memoryview(change(bytes(buffer)))
        await original(end, peer, channel, buffer, **others)

    patch.setattr(RpcTransport, "send_buffer", send_buffer)


class FirstWorld:
    """Whether a world is that of all nodes of the first clusters that were asked for."""

    def __init__(self):
        self._name = ""

    def __contains__(self, world):
        if not isinstance(world, RpcTransport):
            return False  # of a replay
        name = world._world.name
        self._name = self._name or name * ("," not in name)
        return name == self._name


def refused(told):
    return [each for each in told.told if "was refused: " in each]


def trained_on(told, orders, training, *, steps_again=False):
    """Every step is in an average once, the replay has the same bits, and no average is NaN."""
    assert told.ends == [f"average {replayed(training, orders)[0]}"], told.told
    assert all(loss == loss for losses in told.shown.values() for loss in losses)
    assert any(len(losses) > 1 for losses in told.shown.values()) == steps_again, told.told


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("kind", TRAININGS)
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("backups", [0, 3])
def test_a_snapshot_with_nan_ends_its_round_and_all_train_on(monkeypatch, tmp_path, kind, number, backups):
    spoil_snapshot(monkeypatch, 0, number)
    told, orders = recorded(tmp_path, TRAININGS[kind], nodes=3 + backups, ahead=2, backups=backups)
    name = told.view.generation.clusters[0][0].holder.name
    (line,) = refused(told)
    assert f"round {number} was refused: {name} (cluster 0): its snapshot has numbers that are not finite" in line
    assert len(orders) == 1 and told.view.rounds_of(told.view.generation) == LAST
    trained_on(told, orders, TRAININGS[kind])


def test_the_next_round_has_the_bits_of_clusters_that_trained_apart_meanwhile(monkeypatch):
    """`plain_loops` average where the directory says that a round stands."""
    spoil_snapshot(monkeypatch, 2, 2)
    story = Story(steps=16)
    run_virtual(story.run())
    assert story.chain.refused[1] == {2} and story.chain.rounds[1] == 4
    assert all(len(losses) == 1 for losses in story.shown.values())


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("kind", TRAININGS)
@pytest.mark.parametrize(("change", "fact"), [
    (lambda data: data[:-4], "its slice has another length"),
    (lambda data: data[:-4] + NAN, "it sent, or passed on, a slice with numbers that are not finite"),
], ids=["length", "nan"])  # fmt: skip
@pytest.mark.parametrize("message", [1, 2])
def test_a_slice_that_arrives_spoiled_ends_its_round_and_all_train_on(
    monkeypatch, tmp_path, kind, message, change, fact
):
    spoil_buffer(monkeypatch, 0, message, change)
    told, orders = recorded(tmp_path, TRAININGS[kind], ahead=2)
    (line,) = refused(told)
    assert f"round 1 was refused: {told.view.generation.clusters[0][0].holder.name} (cluster 0): {fact}" in line, line
    assert len(orders) == 1 and told.view.rounds_of(told.view.generation) == LAST
    trained_on(told, orders, TRAININGS[kind])


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("kind", TRAININGS)
@pytest.mark.parametrize("backups", [0, 3])
def test_the_cluster_that_spoils_the_last_round_leaves_and_its_steps_are_trained_again(
    monkeypatch, tmp_path, kind, backups
):
    spoil_snapshot(monkeypatch, 0, LAST)
    told, orders = recorded(tmp_path, TRAININGS[kind], nodes=3 + backups, ahead=2, backups=backups)
    assert len(refused(told)) == 1 and "round 4 was refused" in refused(told)[0]
    assert any("clusters that train on: 1" in each for each in told.told), told.told
    trained_on(told, orders, TRAININGS[kind], steps_again=True)


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("kind", TRAININGS)
@pytest.mark.parametrize("spoils", ["snapshot", "moments", "chunk"])
def test_a_late_cluster_leaves_where_its_opening_round_is_refused_and_another_is_formed(
    monkeypatch, tmp_path, kind, spoils
):
    if spoils == "snapshot":
        spoil_snapshot(monkeypatch, 0, 1, late=True)
    else:
        spoil_state(monkeypatch, [1], spoils)
    training = replace(TRAININGS[kind], steps=60)
    befall = Fault.JOIN, {"phase": Phase.TRAINING, "seconds": 0.0, "names": ["n0", "n0"]}
    told, orders = recorded(tmp_path, training, befall, nodes=1, clusters=None, ahead=2)
    (line,) = refused(told)
    assert "round 1 was refused: n0 (cluster 0): its " in line, line
    assert told.view.generation.continuation.late_clusters == 1, told.told
    trained_on(told, orders, training)


def spoil_state(patch, left, how):
    """A number of the first moments that are sent is NaN, or a chunk is too short."""
    copy, send = MomentsTransfer.copy, RpcTransport.send

    async def copied(late):
        await copy(late)
        if late._state and how == "moments" and left[0]:
            left[0] -= 1
            next(each for each in late._state.values() if each.numel() > 3).view(-1)[3] = torch.nan

    async def sent(end, peer, key, *arrays, **others):
        if key[:2] == ("state", "chunk") and how == "chunk" and left[0]:
            left[0] -= 1
            arrays = arrays[:-1]
        await send(end, peer, key, *arrays, **others)

    patch.setattr(MomentsTransfer, "copy", copied)
    patch.setattr(RpcTransport, "send", sent)


@pytest.mark.in_turns(6)
@pytest.mark.parametrize(
    ("how", "fact"),
    [
        ("nan", "it has numbers that are not finite"),
        ("layout", "it has another layout than this stage"),
        ("chunk", "chunk"),
    ],
)
def test_a_new_backup_that_gets_a_spoiled_state_names_its_sender_and_joins_again(monkeypatch, tmp_path, how, fact):
    """No step is trained again meanwhile, and its next state is whole: it goes on alone when the first node dies."""
    spoil_stage(monkeypatch, [1], how)

    async def befall(story):
        before, new = await replaced(story)
        story.sender = first_of(before, new)

        def is_backup_again():
            now = story.view.generation
            backs_up = now.number > before.number and any(each.holder.name == "late" for each in now.backups)
            return backs_up and any(each.generation == now.number for each in story.view.progress.values())

        await story.view.wait_for(is_backup_again)
        story._end(story.sender)

    told, orders = recorded(tmp_path, LONG, then=befall, nodes=3, clusters=1, ahead=2, backups=1)
    (line,) = [each for each in told.told if "cannot be taken" in each]
    assert f"late: its cluster ended (the state of its stage from {told.sender} cannot be taken: " in line
    assert fact in line, line
    assert all(len(losses) == 1 for losses in told.shown.values()), told.told
    trained_on(told, orders, LONG)


def spoil_stage(patch, left, how):
    """Of the first state that is sent to a new backup a number is NaN, a tensor is longer, or a chunk lacks one."""
    copy, send = HeldStage.copy_state, RankHolder.send

    async def spoiled(stage, averages=True):
        state = await copy(stage, averages)
        key = next(key for key, each in state.items() if each.numel() > 3)
        if averages and how != "chunk" and left[0]:
            left[0] -= 1
            if how == "nan":
                state[key].view(-1)[3] = torch.nan
            else:
                state[key] = torch.cat([state[key].view(-1)] * 2)
        return state

    async def sent(holder, key, *arrays, **others):
        if key[:2] == ("state", "chunk") and how == "chunk" and left[0]:
            left[0] -= 1
            arrays = arrays[:-1]
        await send(holder, key, *arrays, **others)

    patch.setattr(HeldStage, "copy_state", spoiled)
    patch.setattr(RankHolder, "send", sent)
