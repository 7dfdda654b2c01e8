"""After any record that a holder of the key writes, its readers continue, and report what they could not read."""

import msgpack
import pytest

from pipelined.state.stages.versions import SAVED
from pipelined.swarm.records.members import LEADER, PEERS, TRAINERS
from pipelined.swarm.records.steps import EVALUATED, HEAD
from tests.swarm.virtual_swarm import MemoryStore, VirtualSwarm
from tests.virtual_time import virtual_seconds

pytestmark = pytest.mark.virtual

STRANGE = [
    b"",
    b"\xc1",
    b"\x91" * 5000,
    b"\x81\x90\x01",  # a map whose key is a list
    b"\x81\xc7\x00\x01\x01",  # and one whose key is of a kind of its own
    msgpack.packb({"marks": [[1 << 63, 0, 1, "x"], 2]}),
    msgpack.packb({"name": "x", "address": 1}),
]


async def test_an_unreadable_record_is_ignored():
    swarm = VirtualSwarm(stages=2, batch=4, eval_batch=1, eval_every=1)
    for name in ("p0", "p1"):
        swarm.peer(name)
    swarm.trainer("t0", steps=6)
    await swarm.until(lambda: swarm.heads[-1:] and swarm.heads[-1].step == 1)
    puts = {f"{kind}{at}": data for kind in (PEERS, TRAINERS, SAVED) for at, data in enumerate(STRANGE)}
    await swarm.directory.transact({}, {**puts, EVALUATED: STRANGE[3], LEADER: STRANGE[3]})
    swarm.peer("late")  # a newcomer reads all of it at once
    await swarm.until(lambda: "late" in swarm.trainers["t0"].view.peers)
    assert puts.keys() <= swarm.trainers["t0"].view.unreadable.keys()
    await swarm.finish(within=20)
    assert [head.step for head in swarm.heads] == list(range(7))
    await swarm.close()


@pytest.mark.parametrize("data", [STRANGE[1], STRANGE[3], None], ids=["noise", "another map", "gone"])
async def test_a_head_that_cannot_be_read_or_is_gone_is_written_over_by_the_leader_that_remembers_the_step(data):
    swarm = VirtualSwarm(stages=2, batch=4)
    for name in ("p0", "p1"):
        swarm.peer(name)
    swarm.trainer("t0", steps=6)
    await swarm.until(lambda: swarm.heads[-1:] and swarm.heads[-1].step == 2)
    await swarm.directory.transact({}, {} if data is None else {HEAD: data}, [HEAD] if data is None else [])
    await swarm.finish(within=20)
    assert [head.step for head in swarm.heads] == list(range(7))
    await swarm.close()


@pytest.mark.parametrize("resume", [False, True])
async def test_a_trainer_that_never_read_the_head_does_not_begin_anew_but_may_go_back_to_what_was_saved(resume):
    swarm, store = VirtualSwarm(stages=1, batch=4), MemoryStore()
    swarm.peer("p0", 0, store=store)
    swarm.trainer("t0", steps=100)
    await swarm.until(lambda: swarm.heads[-1:] and swarm.heads[-1].step == 5)
    swarm.kill("t0")
    await swarm.directory.transact({}, {HEAD: b"\xc1"})
    last = len(swarm.heads)
    swarm.trainer("t1", steps=8, resume=resume)
    if resume:
        await swarm.finish(within=20)
        assert [head.step for head in swarm.heads[last:]] == [4, 5, 6, 7, 8]
    else:
        await virtual_seconds(10.0)
        assert len(swarm.heads) == last and swarm.trainers["t1"].view.leader is None
    swarm.check()
    await swarm.close()
