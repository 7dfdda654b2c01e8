"""Who may ask a peer what: members alone, and whose news is under way is waited for."""

import asyncio

import pytest

from pipelined.membership.access import Admission
from pipelined.membership.view import MembershipView
from pipelined.swarm.records import LeaderRecord, Observer, Peer, Phase, Trainer
from transports.rpc import Party, Rejected, Request

pytestmark = pytest.mark.virtual

TRAINER = Trainer("t0", "virtual://t0", 7, "model")
PEER = Peer("p0", "virtual://p0", 8, 1, Phase.SERVING, "model")
OBSERVER = Observer("o0", "virtual://o0", 9)


def view():
    known = MembershipView(None, None)
    known.trainers["t0"], known.peers["p0"], known.observers["o0"] = TRAINER, PEER, OBSERVER
    known.leader, known.leader_revision = LeaderRecord("t0", TRAINER.address), 5
    return known


def asked_by(address, term=5):
    return Request(Party(address, 1), "topic", {"round": [term, 1]})


@pytest.mark.parametrize(
    "topic, address, stage, term",
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
async def test_strangers_are_refused(topic, address, stage, term):
    with pytest.raises(Rejected, match="stranger"):
        await getattr(Admission(view()), topic)(asked_by(address, term), stage)


async def test_while_nobody_leads_everybody_is_a_stranger_to_rounds():
    """Whatever term it names: that of nobody is 0."""

    known = view()
    known.leader, known.leader_revision = None, 0
    with pytest.raises(Rejected, match="stranger"):
        await Admission(known).leader(asked_by(TRAINER.address, term=0), 1)


@pytest.mark.parametrize(
    "topic, address",
    [
        ("trainer", TRAINER.address),
        ("peer", PEER.address),
        ("leader", TRAINER.address),
        ("reader", PEER.address),
        ("reader", OBSERVER.address),
    ],
)
async def test_members_are_let_in(topic, address):
    await getattr(Admission(view()), topic)(asked_by(address), 1)


async def test_a_newcomer_whose_news_is_under_way_is_let_in():
    known = view()
    late = asyncio.ensure_future(Admission(known).trainer(asked_by("virtual://t1"), 0))
    await asyncio.sleep(0.1)
    known.trainers["t1"] = Trainer("t1", "virtual://t1", 9, "model")
    known.look_again()
    await late
