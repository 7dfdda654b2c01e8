"""A run resumed with another schedule, depth or width gives the numbers of one that never ended."""

import pytest

from pipelined.state.checkpoints.trainer_state import SaveTarget, load, save
from tests.numerics import delayed, plain
from tests.numerics.plain import Case
from tests.numerics.trained import on_ranks

STEPS = 5


def leg(case, optimizer_settings, steps, place):
    """Train these steps on a world of their own, from the checkpoint there if they are not the first, and save."""

    async def work(trainer):
        assert steps.start == 0 or await load(trainer, place) == steps.start
        reports = []
        if case.plan.flushes:
            reports = [await trainer.step(step) for step in steps]
        else:
            reports.append(await trainer.train(steps, lambda: False, reports.append))
        await save(trainer, steps.stop, SaveTarget(place, keep=1))
        parameters = {name: p.detach() for name, p in trainer.local.parameters.items()}
        return [r.loss for r in reports], [r.grad_norm for r in reports], parameters

    return on_ranks(case.job(optimizer_settings=optimizer_settings), work)


def legs(place, optimizer_settings, *parts):
    """Train one leg after another; by rank of the last the losses and norms of all steps, and its parameters."""
    losses, norms = [], []
    for case, steps in parts:
        ranks = leg(case, optimizer_settings, steps, place)
        losses += ranks[0][0]
        norms += ranks[0][1]
    return [plain.Outcome(losses, norms, parameters) for _, _, parameters in ranks]


FLUSHED = [
    Case("one_f_one_b", 2, 2, 2, dropout=0.2),
    Case("chimera_w", 4, 1, 4, dropout=0.2),
    Case("zb_v", 4, 2, 2, dropout=0.2),
]


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("cases", [FLUSHED, FLUSHED[::-1]], ids=["1F1B to ZB-V", "ZB-V to 1F1B"])
def test_schedules_with_a_flush_follow_one_another_as_one_process(cases, tmp_path):
    steps = range(2), range(2, 3), range(3, STEPS)
    expected = plain.plain(cases[0], STEPS)
    for outcome in legs(tmp_path, plain.OPTIMIZER, *zip(cases, steps, strict=True)):
        plain.assert_same(expected, outcome, tolerance=1e-10)


def test_a_flush_gives_way_to_doubled_weights_and_comes_back(tmp_path):
    """2BW takes up the saved weights as both of its versions; a flush goes on from the newer of the two it saved."""
    flush, doubled = Case("chimera", 2, 1, 3), Case("pipedream_2bw", 3, 1, 3)
    version = (0, 1, 2, 2, 4)
    expected = delayed.delayed(doubled, STEPS, lambda stages, group, microbatch: version[microbatch // 3])
    for outcome in legs(
        tmp_path, delayed.OPTIMIZER, (flush, range(2)), (doubled, range(2, 4)), (flush, range(4, STEPS))
    ):
        plain.assert_same(plain.Outcome(expected.losses, expected.norms, expected.weights), outcome, tolerance=1e-10)
