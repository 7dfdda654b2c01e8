"""The Python of docs/swarm-decisions.md runs, and gives what its comments say."""

import ast
import asyncio
import re
from types import SimpleNamespace

from pipelined.membership.bans import AnnouncedMember
from pipelined.swarm.leader.evictions import choose_evictions
from pipelined.swarm.leader.reassignment import rebalance
from pipelined.swarm.leader.stage_assigner import fewest
from pipelined.swarm.records.members import PeerRecord, Phase
from pipelined.swarm.trainer.routing import Router
from tests.launching import ROOT

DOCUMENT = (ROOT / "docs" / "swarm-decisions.md").read_text()
ROUTING, REBALANCING, EVICTION = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


async def request(address, kind, *arrays):
    """Stands for the request to a peer."""
    return f"{kind} of {len(arrays)} at {address}"


def values(block, **names):
    """What each line of a block gives, with what its comment says."""
    lines = (line.split("  # ") for line in block.splitlines())
    return [(eval(code, names), comment) for code, comment in lines]


def test_the_routing_example_sends_a_request_and_bans_the_peer():
    names = {"Router": Router, "AnnouncedMember": AnnouncedMember, "now": 0.0, "seconds": 0.1, "arrays": [1]}
    names["endpoint"] = SimpleNamespace(request=request)
    code = compile(ROUTING, "docs/swarm-decisions.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    asyncio.run(eval(code, names))
    assert names["response"] == "forward of 1 at tcp://10.0.0.7:4000"
    assert names["wiring"].pick(1, "forward", 0.0) is None and names["wiring"].available_at(1, 0.0) > 0


def test_the_rebalancing_examples_give_what_is_shown():
    moves, stage = values(REBALANCING, rebalance=rebalance, fewest=fewest)
    assert moves[0] == ast.literal_eval(moves[1])
    assert stage[0] == int(stage[1].split(":")[0])


def test_the_eviction_examples_give_what_is_shown():
    a, b, c = [PeerRecord(name, f"tcp://{name}:1", at, 0, Phase.SERVING, "m") for at, name in enumerate("abc", 1)]
    for evicted, comment in values(EVICTION, choose_evictions=choose_evictions, a=a, b=b, c=c):
        assert [peer.name for peer in evicted] == re.findall(r"\w", comment.split("]")[0]), comment
