"""A peer's states: every one is reached, only a member is shown, and an event that cannot happen is an error."""

import pytest

from pipelined.swarm.peer.lifecycle import NEXT, PeerEvent, PeerState, state_after
from pipelined.swarm.records.members import Phase

LIFE = "LISTED ARRIVED NOTICED OUTDATED ARRIVED NOTICED RELIEVED UNLISTED ENDED"
SHOWN = "joining serving parting joining serving parting leaving"


def test_a_life_as_the_directory_shows_it():
    state, shown = PeerState.OUTSIDE, []
    for event in LIFE.split():
        state = state_after(state, PeerEvent[event])
        if state not in (PeerState.OUTSIDE, PeerState.GONE):
            shown.append(state.phase)
    assert shown == [Phase(word) for word in SHOWN.split()] and state is PeerState.GONE


def test_every_state_is_reached_and_every_event_happens():
    reached = {PeerState.OUTSIDE, *NEXT.values()}
    assert reached == set(PeerState) and {event for _, event in NEXT} == set(PeerEvent)


def test_any_member_can_lose_its_lease():
    assert {state for state, event in NEXT if event is PeerEvent.UNLISTED} == set(PeerState) - {
        PeerState.OUTSIDE,
        PeerState.GONE,
    }


@pytest.mark.parametrize("state, event", [(s, e) for s in PeerState for e in PeerEvent if (s, e) not in NEXT])
def test_an_event_that_cannot_happen_is_an_error(state, event):
    with pytest.raises(RuntimeError, match=f"{event.name} cannot happen to a peer that is {state.value}"):
        state_after(state, event)
