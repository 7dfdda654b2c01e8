"""The three ways to begin gradient sums: Bert-48's sizes, the fitted sums, and the gaps."""

import math

import pytest

from apps.common.lm.models.gpt2_presets import parameters
from benchmarks.paper_figures import BERT
from benchmarks.pipelines.gaps import Overlap, gaps_of
from benchmarks.sync_overlap import SUMS, Options, compared, links_of
from collectives import ProblemSize
from collectives.algorithms import ALL_REDUCE
from pipelined.errors import UsageError
from pipelined.programs.costs import Costs
from pipelined.programs.plan import Plan

MIB = 1 << 20
TAKEN = {"empty": [1e-4], "full": [4e-4], SUMS: [0.040], "eager": [0.33], "gap": [0.32], "after": [0.36]}


@pytest.mark.parametrize("depth", [4, 6, 8])
def test_stages_are_as_large_as_bert_48_cut_evenly(depth):
    nbytes = Options(depth=depth, gradient_mib=parameters(BERT) * 4 / MIB).gradient_bytes
    blocks = 48 // depth * (12 * 1024**2 + 13 * 1024)
    assert len(nbytes) == depth and all(n % 4 == 0 for n in nbytes)
    assert math.isclose(nbytes[1] / nbytes[0], blocks / (blocks + 31_780_864 - 1024 * 2), rel_tol=2e-2)
    assert len(set(nbytes[1:-1])) == 1 and max(nbytes) == max(nbytes[0], nbytes[-1])


def test_blocks_that_cannot_be_shared_out_are_refused():
    with pytest.raises(UsageError, match=r"48 blocks \(depth: 10\)"):
        Options(depth=10).gradient_bytes  # noqa: B018 (the property raises)


def test_sums_at_the_fitted_gamma_take_what_they_took_alone():
    options = Options()
    links = links_of(options, TAKEN)
    both = (0, 3)  # the ends are the largest, and lie on the same ranks
    problems = [ProblemSize.on_one_node(4, options.gradient_bytes[stage]) for stage in both]
    held = [ALL_REDUCE.forms("rabenseifner").seconds(problem, links) for problem in problems]
    assert math.isclose(sum(held), 0.040) and math.isclose(links.alpha + links.beta * MIB, 4e-4)


def test_sums_faster_than_their_messages_have_no_gamma():
    assert links_of(Options(), {**TAKEN, SUMS: [1e-6]}).gamma == 0.0


def test_summing_early_is_simulated_to_be_shorter_than_after_the_flush():
    _, rows = compared(Options(), TAKEN)
    seconds = {row.sync: row.simulated_s for row in rows}
    assert seconds["gap"] <= seconds["after"] - 0.010 and seconds["eager"] <= seconds["after"]


@pytest.mark.parametrize(
    ("depth", "microbatches", "gaps"),
    [(4, 4, {3: 30}), (4, 8, {3: 30}), (8, 8, {5: 20, 6: 40, 7: 90})],  # read off the printed grids
)
def test_gaps_are_those_of_the_grid(depth, microbatches, gaps):
    found = gaps_of(Plan("chimera", depth, 1, 1, microbatches), Costs(0.010, 0.020))
    assert found == {stage: pytest.approx(ms / 1e3) for stage, ms in gaps.items()}


def test_a_schedule_without_gaps_hides_nothing():
    assert gaps_of(Plan("gpipe", 4, 1, 1, 4), Costs(0.010, 0.020)) == {}
    assert not Overlap({}, (1.0,), (1.0,), (0.0,), (0.1,)).long_enough
