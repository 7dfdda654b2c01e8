"""A line whenever what a peer does changes, and never the same line twice running."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

from pipelined.membership.directory import Change, Entry
from pipelined.swarm.process.peer_process import PeerLog
from pipelined.swarm.records.members import PEERS, PeerRecord, Phase
from pipelined.swarm.records.steps import Head
from pipelined.swarm.records.view import SwarmView

HEAD = Head(2, "m", 3)


def peer(phase, name="p", stage=1):
    return PeerRecord(name, f"at {name}", 7, stage, phase, "m")


class SettableView(SwarmView):
    """A view with plain attributes in place of what it reads from the directory."""

    head = leader = evaluation = None


async def told(*news, revision):
    """What the peer "p" says while it hears this, one thing after another; a text is a try that failed."""
    view, said, peer = SettableView(None, None), [], SimpleNamespace(last_fetch_error="")
    process = SimpleNamespace(name="p", address="at p", view=view, peer=peer)
    view.revision = revision
    following = asyncio.ensure_future(PeerLog(process, said.append).follow())
    await asyncio.sleep(0)
    for item in news:
        match item:
            case Head():
                view.head = item
            case PeerRecord():
                view.apply_changes([Change(PEERS + item.name, Entry(item.pack(), 1), 1)])
            case "gone":
                view.apply_changes([Change(PEERS + "p", None, 1)])
            case str():
                peer.last_fetch_error = item
            case _:
                view.cut_off = item
        view.notify()
        for _ in range(5):
            await asyncio.sleep(0)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    return said


def run(*news, revision=1):
    return asyncio.run(told(*news, revision=revision))


def test_a_life_from_coming_to_leaving():
    life = [peer(phase) for phase in Phase]
    assert run(HEAD, peer(Phase.SERVING, "q"), *life, "gone") == [
        "p: waits for a trainer that begins",
        "p: waits for a leader, which assigns it a stage",
        "p: stage 1: fetches its state",
        "p: stage 1: serves",
        "p: stage 1: drains: serves until another peer has its state or its grace period ends",
        "p: stage 1: hands over, and leaves",
    ]


def test_a_name_that_another_process_has():
    taken, mine = run(HEAD, replace(peer(Phase.SERVING), address="elsewhere"), peer(Phase.SERVING))[-2:]
    assert "waits for its name" in taken and "(at elsewhere)" in taken and mine == "p: stage 1: serves"


def test_changes_elsewhere_are_not_logged():
    assert len(run(HEAD, peer(Phase.SERVING), HEAD, peer(Phase.JOINING, "q"), peer(Phase.SERVING, "q"))) == 3


def test_a_stage_that_is_lost_and_a_state_that_does_not_come():
    *_, waits, fetches, failed = run(HEAD, peer(Phase.JOINING), peer(Phase.SERVING, "q"), "q: gone")
    assert waits == "p: stage 1: waits for a peer that has its state, or a checkpoint"
    assert (fetches, failed) == (
        "p: stage 1: fetches its state",
        "p: stage 1: fetches its state (the last try failed: q: gone)",
    )


def test_a_directory_that_was_gone_before_it_was_read():
    (said,) = run(True, revision=0)
    assert "the directory does not reply" in said


def test_a_directory_that_does_not_reply():
    *_, cut_off, back = run(HEAD, peer(Phase.SERVING), True, False)
    assert "applies no step" in cut_off and back == "p: stage 1: serves"
