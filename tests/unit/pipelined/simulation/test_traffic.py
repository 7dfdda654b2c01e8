"""Bytes on every link in a step: counted in real training, they are to the byte what was worked out before."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from apps.gpt2.planning.workload import WorkloadOptions, workload
from pipelined.programs.plan import Plan
from pipelined.simulation import StageCosts, Workload
from pipelined.simulation.traffic import link_bytes, message_bytes
from tests.numerics.arrangements import name
from tests.numerics.plain import OPTIMIZER, SEQUENCE, Case
from tests.numerics.trained import on_ranks

CASES = [
    Case(schedule, 4, width, 4, chunks=2 if schedule == "interleaved" else 1)
    for schedule in ("chimera", "gpipe", "one_f_one_b", "interleaved")
    for width in (1, 2)
]
CASES += [Case("chimera", 2, 3, 1), Case("chimera", 4, 1, 5, pipes=4, tied=False), Case("zb_v", 4, 2, 3)]
CASES += [Case("chimera", 4, 3, 4, scale="backward-halving"), Case("dualpipe", 4, 1, 8, recompute=True)]
CASES += [Case("pipedream", 4, 2, 4), Case("pipedream_2bw", 4, 1, 4)]


def counted(case, all_reduce):
    """Bytes by (from rank, to rank) in the second of two steps; what a rank tells itself is left out."""

    async def second_step(trainer):
        transport = trainer.context.actor.transport
        await trainer.step(0)
        before = Counter(transport.traffic.bytes_to)
        await trainer.step(1)
        return Counter(transport.traffic.bytes_to) - before

    job = case.job(torch.float64, all_reduce=all_reduce, optimizer_settings=replace(OPTIMIZER, clip=0.0))
    sent = on_ranks(job, second_step)
    return {(here, there): n for here, to in enumerate(sent) for there, n in to.items() if here != there}


def predicted(case, all_reduce):
    return link_bytes(case.plan, workload(case.model.config, case.plan, SEQUENCE, WorkloadOptions(8)), all_reduce)


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("all_reduce", ["ring", "rabenseifner"])
@pytest.mark.parametrize("case", CASES, ids=name)
def test_every_link_carries_the_bytes_that_were_predicted(case, all_reduce):
    assert counted(case, all_reduce) == predicted(case, all_reduce)


@pytest.mark.parametrize("all_reduce", ["auto", "multi_ring", "recursive_doubling"])
def test_so_it_does_with_every_other_algorithm(all_reduce):
    case = Case("chimera", 4, 3, 5)
    assert counted(case, all_reduce) == predicted(case, all_reduce)


def test_activations_go_down_and_gradients_up_every_boundary():
    stages = Workload([StageCosts(message_bytes=nbytes) for nbytes in (10, 100, 1000)])
    carried = message_bytes(Plan("gpipe", 3, 2, 1, 4), stages)
    assert carried == {
        (0, 1): 40, (1, 0): 40, (1, 2): 400, (2, 1): 400,
        (3, 4): 40, (4, 3): 40, (4, 5): 400, (5, 4): 400,
    }  # fmt: skip


def test_what_stays_on_a_rank_uses_no_link():
    carried = message_bytes(Plan("zb_v", 4, 1, 1, 3), Workload([StageCosts(message_bytes=10)] * 4))
    assert carried == {(0, 1): 60, (1, 0): 60}
