"""Random faults at random moments (`python -m tests.ravnest.story SEED` tells one story).

Every run takes a few seeds; with `--slice`, each of 25 runs takes twenty of the next 500, and one of hundreds
takes each of the rest.
"""

import pytest

from tests.ravnest.story import tell

SEEDS, GROUP, GROUPS, TURNS = 12, 20, 250, 25
LATE_LEAVE, OPENED_BY_SOME = 1068, 598
"""A node leaves the worlds of clusters only after later ones end; clusters end when some nodes have opened theirs."""


def turns_of(group):
    """How often a group of seeds is run; see `tests.slices`."""
    return pytest.mark.in_turns(TURNS) if group < TURNS else pytest.mark.full


@pytest.mark.parametrize("seed", [*range(SEEDS), LATE_LEAVE, OPENED_BY_SOME])
def test_random_faults_change_no_bit(seed):
    tell(seed)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", [pytest.param(SEEDS + n * GROUP, marks=turns_of(n)) for n in range(GROUPS)])
def test_more_random_faults_change_no_bit(first):
    for seed in range(first, first + GROUP):
        tell(seed)
