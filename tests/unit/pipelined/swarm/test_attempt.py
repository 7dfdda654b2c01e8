"""What a peer answers to a conductor and nobody can read fails the try, and ends no process."""

import numpy as np
import pytest

from pipelined.clock import run_virtual
from pipelined.swarm.attempt import Attempt, Failed
from pipelined.swarm.records import Peer, Phase
from transports import Block
from transports.endpoints import Answer

PEER = Peer("p0", "virtual://p0", 1, 0, Phase.SERVING, "m")


class Asking:
    """Answers for one peer, of whom all is counted, and who sums to this."""

    def __init__(self, note):
        self._note = note

    async def ask(self, who, topic, **note):
        if topic == "reduce":
            return Answer(note=self._note)
        return Answer((Block.of(np.array([0])), Block.of(np.array([1.0]))), {"load": 0.5})


@pytest.mark.parametrize(
    "note", [None, {}, {"square": 1.0}, {"square": float("nan"), "digest": b"x"}, {"square": 1.0, "digest": []}]
)
def test_a_total_of_no_norm_or_no_digest_is_none(note):
    async def take():
        attempt = Attempt((1, 1), 0, 1, [[PEER]], Asking(note))
        covers = await attempt.prepare()
        assert not covers[0].missing
        with pytest.raises(Failed, match="p0"):
            await attempt.reduce(covers, 0.0)

    run_virtual(take())
