"""Faults strike only a peer with another one at its stage."""

from benchmarks.exact_swarms import spare_peers
from pipelined.swarm.protocol.status import StatusReply
from pipelined.swarm.records.members import PeerRecord
from pipelined.swarm.status.swarm_status import PeerStatus


def peer(name, stage, phase="serving", replies=True):
    reply = StatusReply.__new__(StatusReply) if replies else None
    return PeerStatus(PeerRecord(name, "tcp://127.0.0.1:1", 1, stage, phase, "model"), reply, 0.5)


def test_a_stage_s_only_serving_peer_is_spared():
    peers = [
        peer("a", 0),
        peer("b", 0),
        peer("c", 1),
        peer("d", 1, "joining"),
        peer("e", 2),
        peer("f", 2, replies=False),
    ]
    assert spare_peers(peers, ()) == ["a", "b"]
    assert spare_peers(peers, {"a"}) == []
