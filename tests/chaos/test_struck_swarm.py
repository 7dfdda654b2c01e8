"""Real processes over TCP, struck in each phase of a step: what remains trains as one process does, to the bit.

How long they stand still is timed by `python -m benchmarks.swarm_faults`.
"""

import asyncio
import random

import pytest

from pipelined.state.stages.fetch import by_preference
from pipelined.swarm.records.members import PeerRecord, Phase
from tests.swarm.real_swarm import PEERS, check, train

PHASES = ("forward", "backward", "acknowledged", "prepare", "reduce", "part", "summed", "commit")
OF_THE_SUM = ("prepare", "reduce", "part", "summed")
STRIKES = ("SIGKILL", "SIGSTOP", "CUT")


def drawn(seed):
    """One fault for a peer of each stage, and sometimes one for a trainer."""
    draw = random.Random(seed)
    faults = {}
    for stage in range(3):
        name, phase, times = f"s{stage}{draw.choice('ab')}", draw.choice(PHASES), draw.randint(1, 6)
        faults[name] = f"{phase}:{times}:{draw.choice(STRIKES)}"
    if draw.random() < 0.5:
        faults["t0"] = f"microbatch:{draw.randint(3, 12)}:SIGKILL"
    return faults


def struck(faults, late=()):
    everyone, trainers = asyncio.run(train(faults, late))
    check(everyone, trainers, faults)


def first_donor(joiner):
    """The peer of its stage that a joiner asks first for the state."""
    mates = [name for name in PEERS if name[:2] == joiner[:2]]
    return by_preference(joiner, [PeerRecord(name, "", 0, 0, Phase.SERVING, "") for name in mates])[0].name


@pytest.mark.timeout(120)
def test_a_swarm_that_is_struck_everywhere_changes_no_bit():
    """A donor dies as it gives its state, a member as it sums, a trainer at work; one stops, one is cut off."""
    faults = {
        first_donor("s0d"): "chunk:1:SIGKILL",
        "s1a": "part:2:SIGKILL",
        "s1b": "commit:3:CUT",
        "s2a": "backward:3:SIGSTOP",
        "t0": "microbatch:9:SIGKILL",
    }
    struck(faults, late=["s0d"])


@pytest.mark.full
@pytest.mark.timeout(90)
@pytest.mark.parametrize("name", STRIKES)
@pytest.mark.parametrize("times", [1, 2, 4])
@pytest.mark.parametrize("phase", PHASES)
def test_a_swarm_struck_in_any_phase_changes_no_bit(phase, times, name):
    struck({"s1a": f"{phase}:{times}:{name}"})


@pytest.mark.full
@pytest.mark.timeout(90)
@pytest.mark.parametrize("seed", range(30))
def test_a_swarm_struck_at_random_moments_of_its_sums_changes_no_bit(seed):
    draw = random.Random(f"sums {seed}")
    strike = f"{draw.choice(OF_THE_SUM)}:{draw.randint(1, 20)}:{draw.choice(STRIKES)}"
    struck({f"s{draw.randrange(3)}{draw.choice('abc')}": strike})


@pytest.mark.full
@pytest.mark.timeout(90)
@pytest.mark.parametrize("name", STRIKES)
@pytest.mark.parametrize("times", [7, 20, 45])
def test_a_trainer_struck_amid_its_backwards_changes_no_bit(times, name):
    struck({"t0": f"returning:{times}:{name}"})


@pytest.mark.in_turns(2)
@pytest.mark.full
@pytest.mark.timeout(90)
@pytest.mark.parametrize("seed", range(30))
def test_a_swarm_struck_at_more_random_moments_changes_no_bit(seed):
    struck(drawn(seed))


@pytest.mark.full
@pytest.mark.timeout(90)
def test_donors_struck_while_they_give_their_state_are_replaced():
    struck({first_donor("s0d"): "chunk:1:SIGKILL", first_donor("s1d"): "manifest:1:SIGKILL"}, late=["s0d", "s1d"])
