"""Admission: only members may send requests; the check waits for a member's record that is on its way."""

import asyncio

import pytest

from pipelined.directory import Entry
from pipelined.membership.access import Admission
from pipelined.membership.records import LEADER, LeaderRecord, Observer, Peer, Phase, Trainer
from pipelined.membership.view import MembershipView
from transports.rpc import Party, Rejected, Request

pytestmark = pytest.mark.virtual

TRAINER = Trainer("t0", "virtual://t0", 7, "model")
PEER = Peer("p0", "virtual://p0", 8, 1, Phase.SERVING, "model")
OBSERVER = Observer("o0", "virtual://o0", 9)


def view():
    known = MembershipView(None, None)
    known.trainers["t0"], known.peers["p0"], known.observers["o0"] = TRAINER, PEER, OBSERVER
    known.apply(LEADER, Entry(LeaderRecord("t0", TRAINER.address).pack(), 5))
    return known


def request_from(address):
    return Request(Party(address, 1), "topic", {})


@pytest.mark.parametrize(
    "topic, address, stage_or_term",
    [
        ("trainer", PEER.address, 1),
        ("peer", TRAINER.address, 1),
        ("peer", PEER.address, 0),
        ("peer", OBSERVER.address, 1),
        ("trainer", OBSERVER.address, 1),
        ("reader", TRAINER.address, 1),
        ("reader", PEER.address, 0),
        ("leader", PEER.address, 5),
        ("leader", TRAINER.address, 4),
        ("leader", TRAINER.address, 6),
    ],
)
async def test_strangers_are_refused(topic, address, stage_or_term):
    with pytest.raises(Rejected, match="stranger"):
        await getattr(Admission(view()), topic)(request_from(address), stage_or_term)


async def test_without_a_leader_every_sender_of_a_round_is_a_stranger():
    """In every term: without a leader the term is 0."""

    known = view()
    known.apply(LEADER, None)
    with pytest.raises(Rejected, match="stranger"):
        await Admission(known).leader(request_from(TRAINER.address), 0)


@pytest.mark.parametrize(
    "topic, address, stage_or_term",
    [
        ("trainer", TRAINER.address, 1),
        ("peer", PEER.address, 1),
        ("leader", TRAINER.address, 5),
        ("reader", PEER.address, 1),
        ("reader", OBSERVER.address, 1),
    ],
)
async def test_members_are_admitted(topic, address, stage_or_term):
    await getattr(Admission(view()), topic)(request_from(address), stage_or_term)


async def test_a_newcomer_is_admitted_when_its_record_arrives():
    known = view()
    late = asyncio.ensure_future(Admission(known).trainer(request_from("virtual://t1"), 0))
    await asyncio.sleep(0.1)
    known.trainers["t1"] = Trainer("t1", "virtual://t1", 9, "model")
    known.look_again()
    await late
