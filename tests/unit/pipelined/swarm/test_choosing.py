"""A newcomer goes where it is needed most, by who is there, who came before, and what they have on disk."""

import asyncio
import random

import pytest

from pipelined.clock import VirtualClock, run_virtual
from pipelined.swarm.choosing import Choosing, stage_for
from pipelined.swarm.directory import EmbeddedDirectory, serve_directory
from pipelined.swarm.membership import Roster
from pipelined.swarm.records import PEERS, Head, Mark, Peer, Phase, Saved
from pipelined.swarm.standing import standing
from transports.endpoints.virtual import VirtualNetwork

SERVING, JOINING, LEAVING = Phase.SERVING, Phase.JOINING, Phase.LEAVING


def record(name, stage, phase, incarnation=1):
    return Peer(name, f"virtual://{name}", incarnation, stage, phase, "m")


def seen(*peers, saved=(), came=()):
    """A roster of peers p0, p1, … that said in this order where they are; and who came when, by name."""
    roster = Roster(None, None)
    roster.head, roster.revision = Head(3, "m", step=5, lineage="run-5"), 1000
    roster.came = dict(came)
    for at, (stage, phase) in enumerate(peers):
        roster.peers[f"p{at}"], roster.announced[f"p{at}"] = record(f"p{at}", stage, phase), at + 1
    for name, stages in dict(saved).items():
        roster.saved[name] = Saved([[5, stage, 3, "run-5"] for stage in stages])
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
        ([(0, SERVING)], [0, 1, 2], 1),  # all of them lie here, so none more than another
        ([(0, SERVING), (7, SERVING)], [], 1),  # of another model
    ],
)
def test_it_takes_what_is_lost_and_saved_here_or_else_where_the_fewest_are(peers, saved, stage):
    assert stage_for("new", seen(*peers, saved={"new": saved}), 3) == stage


def test_what_was_saved_of_another_point_is_of_no_use():
    roster = seen((0, SERVING))
    roster.saved["new"] = Saved([list(Mark(4, 2, 3, "run-4"))])
    assert stage_for("new", roster, 3) == 1


def test_where_it_was_itself_does_not_count():
    assert stage_for("p0", seen((0, SERVING), (1, SERVING)), 2) == 0


def test_who_came_before_and_has_not_chosen_yet_is_taken_to_choose_as_it_will():
    came = {"first": 10, "new": 11, "later": 12}
    assert stage_for("new", seen((0, SERVING), came=came), 3) == 2
    assert stage_for("new", seen((0, SERVING), came=came, saved={"first": [2]}), 3) == 1


def test_who_came_later_and_was_faster_does_not_count():
    roster = seen((0, SERVING), (1, SERVING), came={"new": 10, "quick": 11})
    roster.peers["quick"], roster.announced["quick"] = record("quick", 2, JOINING), 12
    assert stage_for("new", roster, 3) == 2


def test_the_record_of_a_former_life_says_nothing_of_one_that_chooses():
    roster = seen((0, SERVING), (1, SERVING), came={"p1": 10, "new": 11})
    assert stage_for("new", roster, 2) == 0, "it did not see that p1 chooses anew, and is to choose stage 1"


async def _come(network, name, there, draw):
    """Choose as a process does, slowly or at once; then say it."""
    clock = network.clock(name)
    directory = EmbeddedDirectory(network.endpoint(name), "virtual://directory", clock)
    roster = Roster(directory, clock)
    following = asyncio.ensure_future(roster.follow())
    async with standing(directory, PEERS + name, 60.0, clock) as place:
        await asyncio.sleep(draw.choice([0.0, draw.uniform(0.0, 0.05)]))
        stage = await Choosing(name, roster, 3).choose(place)
        there[roster.came[name]] = stage
        await asyncio.sleep(draw.choice([0.0, draw.uniform(0.0, 0.05)]))
        await place.put(record(name, stage, JOINING, place.incarnation))
        await asyncio.sleep(1.0)
    following.cancel()


@pytest.mark.parametrize("peers", [1, 2, 30])
@pytest.mark.parametrize("seed", range(3))
def test_of_many_who_come_at_once_each_chooses_as_if_all_before_it_had_chosen(peers, seed):
    async def come():
        network, there, draw = VirtualNetwork(seed, delay=1e-2, jitter=5e-3), {}, random.Random(seed)
        async with network.endpoint("directory") as end:
            serving = asyncio.ensure_future(serve_directory(end, VirtualClock()))
            await asyncio.gather(*(_come(network, f"p{at}", there, draw) for at in range(peers)))
            serving.cancel()
        assert [there[came] for came in sorted(there)] == [at % 3 for at in range(peers)]
        assert VirtualClock().now() < 1.5, "they waited for one another"

    run_virtual(come())
