"""A newcomer goes where it is needed most, by who is there and what it has on disk."""

import pytest

from pipelined.swarm.choosing import stage_for
from pipelined.swarm.membership import Roster
from pipelined.swarm.records import Peer, Phase

SERVING, JOINING, LEAVING = Phase.SERVING, Phase.JOINING, Phase.LEAVING


def seen(*peers):
    roster = Roster(None, None)
    roster.peers = {
        f"p{at}": Peer(f"p{at}", f"virtual://p{at}", at + 1, stage, phase, "m")
        for at, (stage, phase) in enumerate(peers)
    }
    return roster


@pytest.mark.parametrize(
    "peers, saved, stage",
    [
        ([], [], 0),
        ([(0, SERVING)], [], 1),
        ([(0, SERVING), (1, JOINING)], [], 2),
        ([(0, SERVING), (1, SERVING), (2, SERVING), (2, JOINING), (0, JOINING)], [], 1),
        ([(0, SERVING), (1, SERVING), (2, LEAVING)], [], 2),  # who leaves does not stay
        ([(0, SERVING)], [2], 2),  # its state lies here, and nobody has it
        ([(0, SERVING), (2, SERVING)], [2], 1),  # somebody has it
        ([(0, SERVING), (2, JOINING)], [1, 2], 1),  # who joins has none yet
        ([(0, SERVING), (7, SERVING)], [], 1),  # of another model
    ],
)
def test_it_takes_what_is_lost_and_saved_here_or_else_where_the_fewest_are(peers, saved, stage):
    assert stage_for("new", seen(*peers), 3, saved) == stage


def test_where_it_was_itself_does_not_count():
    assert stage_for("p0", seen((0, SERVING), (1, SERVING)), 2, []) == 0
