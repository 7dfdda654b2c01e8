"""SenderCheck: only members may send requests; the check waits for a member's record that is on its way."""

import asyncio

import numpy as np
import pytest

from pipelined.membership.directory import Entry
from pipelined.state.stages.messages import FetchManifest
from pipelined.swarm.peer.service import SenderCheck
from pipelined.swarm.protocol.rounds import Inherit, Resume, RoundName
from pipelined.swarm.protocol.work import Announce
from pipelined.swarm.records.members import LEADER, LeaderRecord, ObserverRecord, PeerRecord, Phase, TrainerRecord
from pipelined.swarm.records.view import SwarmView
from tests.virtual_time import virtual_seconds
from transports.rpc import Party, Rejected

pytestmark = pytest.mark.virtual

TRAINER = TrainerRecord("t0", "virtual://t0", 7, "model")
PEER = PeerRecord("p0", "virtual://p0", 8, 1, Phase.SERVING, "model")
OBSERVER = ObserverRecord("o0", "virtual://o0", 9)


def view():
    known = SwarmView(None, None)
    known.trainers["t0"], known.peers["p0"], known.observers["o0"] = TRAINER, PEER, OBSERVER
    known.apply(LEADER, Entry(LeaderRecord("t0", TRAINER.address).pack(), 5))
    return known


def admitted(view, role, address, stage=1, term=5):
    """Let this address send a request that needs this role."""
    request = {
        "trainer": Announce(),
        "peer": Inherit(0, "", np.zeros(1), np.zeros(0, np.int64), np.zeros(0)),
        "reader": FetchManifest(),
        "leader": Resume(RoundName(term, 1), True),
    }[role]
    return SenderCheck(view).admit(request, Party(address, 1), stage)


@pytest.mark.parametrize(
    "role, address, stage, term",
    [
        ("trainer", PEER.address, 1, 5),
        ("peer", TRAINER.address, 1, 5),
        ("peer", PEER.address, 0, 5),
        ("peer", OBSERVER.address, 1, 5),
        ("trainer", OBSERVER.address, 1, 5),
        ("reader", TRAINER.address, 1, 5),
        ("reader", PEER.address, 0, 5),
        ("leader", PEER.address, 1, 5),
        ("leader", TRAINER.address, 1, 4),
        ("leader", TRAINER.address, 1, 6),
    ],
)
async def test_strangers_are_refused(role, address, stage, term):
    with pytest.raises(Rejected, match="stranger"):
        await admitted(view(), role, address, stage, term)


async def test_without_a_leader_every_sender_of_a_round_is_a_stranger():
    """In every term: without a leader the term is 0."""

    known = view()
    known.apply(LEADER, None)
    with pytest.raises(Rejected, match="stranger"):
        await admitted(known, "leader", TRAINER.address, term=0)


@pytest.mark.parametrize(
    "role, address",
    [
        ("trainer", TRAINER.address),
        ("peer", PEER.address),
        ("leader", TRAINER.address),
        ("reader", PEER.address),
        ("reader", OBSERVER.address),
    ],
)
async def test_members_are_let_in(role, address):
    await admitted(view(), role, address)


async def test_a_newcomer_is_admitted_when_its_record_arrives():
    known = view()
    late = asyncio.ensure_future(admitted(known, "trainer", "virtual://t1", stage=0))
    await virtual_seconds(0.1)
    known.trainers["t1"] = TrainerRecord("t1", "virtual://t1", 9, "model")
    known.notify()
    await late
