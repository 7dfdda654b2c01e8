"""The bytes that a step was planned to send, beside those that all ranks count in it."""

from dataclasses import replace

import pytest
import torch

from apps.gpt2.config import Config
from apps.gpt2.job import Job
from apps.gpt2.planned_bytes import planned_bytes
from tests.numerics.plain import OPTIMIZER, SEQUENCE, Case
from tests.numerics.teams import TeamCase
from tests.numerics.trained import on_every_rank

CASES = [
    (Case("chimera", 4, 2, 4), "ring", {}),
    (Case("one_f_one_b", 2, 1, 3), "auto", {"exact_sums": True}),
    (Case("pipedream_2bw", 2, 2, 4), "ring", {"optimizer_config": replace(OPTIMIZER, clip=0.0)}),
    (TeamCase("gpipe", 1, 2, 2, layers=2, layout="data"), "ring", {}),
    (TeamCase("gpipe", 2, 2, 2, layers=1, layout="data"), "ring", {"shard_optimizer": True}),
    (TeamCase("one_f_one_b", 1, 2, 2, layers=1, layout="data+zero3", recompute=True), "ring", {}),
    (TeamCase("one_f_one_b", 1, 1, 2, layers=1, layout="data+zero3"), "ring", {"shard_optimizer": True}),
    (TeamCase("gpipe", 1, 1, 3, layers=1, layout="data+zero2"), "ring", {"shard_optimizer": True}),
    (TeamCase("chimera", 2, 1, 2, layers=1, layout="data+zero2", recompute=True), "ring", {}),
    (TeamCase("one_f_one_b", 2, 1, 2, layers=2, recompute=True, dropout=0.2), "ring", {}),
]


@pytest.mark.parametrize(("case", "all_reduce", "numerics"), CASES, ids=str)
def test_a_step_sends_what_was_planned(case, all_reduce, numerics):
    split, _, state = getattr(case, "layout", "").partition("+")
    plan = replace(case.plan, split=split)
    config = Config(recompute=case.recompute, layout=state or None)
    job = Job(config, case.model.config, SEQUENCE, plan, "")

    async def both(trainer, transport):
        planned = await planned_bytes(job, trainer)
        reports = []
        if trainer.plan.flushes:
            await trainer.step(0)  # with exact sums it takes two passes
            reports.append(await trainer.step(1))
        else:  # steps overlap: of the last one a rank sends something after it has counted
            reports.append(await trainer.train(range(5), on_step=reports.append))
        return planned * len(reports), sum(report.nbytes for report in reports)

    found = on_every_rank(case, both, torch.float64, all_reduce=all_reduce, **numerics)
    planned, (sent,) = sum(planned for planned, _ in found), {sent for _, sent in found}
    assert sent == planned if plan.flushes else 0.95 * planned < sent <= planned
