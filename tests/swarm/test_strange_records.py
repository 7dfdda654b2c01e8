"""Whatever somebody with the key writes into the directory, who reads it goes on, and says what it could not read."""

import msgpack

from pipelined.clock import run_virtual
from pipelined.swarm.records import CONDUCTOR, EVALUATED, PEERS, SAVED, TRAINERS
from tests.swarm.virtual_swarm import VirtualSwarm

STRANGE = [
    b"",
    b"\xc1",
    b"\x91" * 5000,
    b"\x81\x90\x01",  # a map whose key is a list
    b"\x81\xc7\x00\x01\x01",  # and one whose key is of a kind of its own
    msgpack.packb({"marks": [[1 << 63, 0, 1, "x"], 2]}),
    msgpack.packb({"name": "x", "address": 1}),
]


def test_records_that_nobody_can_read_stop_nobody():
    async def train():
        swarm = VirtualSwarm(stages=2, batch=4, eval_batch=1, eval_every=1)
        for name in ("p0", "p1"):
            swarm.peer(name)
        swarm.trainer("t0", steps=6)
        await swarm.until(lambda: swarm.heads[-1:] and swarm.heads[-1].step == 1)
        puts = {f"{kind}{at}": data for kind in (PEERS, TRAINERS, SAVED) for at, data in enumerate(STRANGE)}
        await swarm.directory.transact({}, {**puts, EVALUATED: STRANGE[3], CONDUCTOR: STRANGE[3]})
        swarm.peer("late")  # who comes reads all of it at once
        await swarm.until(lambda: "late" in swarm.trainers["t0"].roster.peers)
        assert puts.keys() <= swarm.trainers["t0"].roster.strange.keys()
        await swarm.finish(within=20)
        assert [head.step for head in swarm.heads] == list(range(7))
        await swarm.close()

    run_virtual(train())
