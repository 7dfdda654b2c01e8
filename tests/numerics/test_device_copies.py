"""What one step copies between a device and the host, and where it waits for the device: counted without a GPU.

These are the copies that docs/launching.md lists for a GPU.
"""

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from pipelined.actors.actor import Actor
from pipelined.actors.agree import agree
from pipelined.actors.device.executor import TorchExecutor
from pipelined.aio.clock import RealClock
from pipelined.traces.tracer import NullTracer
from pipelined.training.assemble import build_rank
from pipelined.training.stages.stage import Stage
from tests.numerics.plain import Case
from tests.numerics.stand_in import DEVICE, Counting, StandIn
from tests.numerics.trained import on_ranks
from transports import new_event_loop
from transports.local import world

STEPS = 2


@dataclass(frozen=True)
class Momentum:
    """SGD: the fused AdamW knows its devices by name."""

    clip: float = 0.5

    def build(self, parameters):
        return torch.optim.SGD([parameters[name] for name in sorted(parameters)], lr=0.1, momentum=0.9, foreach=False)

    def rate(self, step):
        return None


class OnDevice:
    """A model with its parameters on the stand-in."""

    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        return getattr(self._model, name)

    def build(self, layers, dtype, device, seed):
        if seed is None:
            return self._model.build(layers, dtype, device, None)
        part = self._model.build(layers, dtype, "cpu", seed)
        for module in part.modules():
            for name, parameter in list(module._parameters.items()):
                if parameter is not None:
                    module._parameters[name] = nn.Parameter(StandIn(parameter.detach()))
        return part


class CountingExecutor(TorchExecutor):
    """Computes in a thread that counts."""

    def __init__(self, transport, counts):
        super().__init__("cpu", RealClock(), transport.set_computing)
        self.device, self._counts = str(DEVICE), counts

    async def run(self, op, work, report_at_once=True):
        return await super().run(op, self._counting(work), report_at_once)

    def submit(self, parent, work):
        work.function = self._counting(work.function)
        super().submit(parent, work)

    def _counting(self, work):
        def counted():
            with Counting(self._counts):
                return work()

        self._counts["run"] += 1
        return counted


def counted(job, monkeypatch):
    """Of the last of some steps: the counts of the event loop, and by rank those of its device and all losses."""
    loop, waited = Counter(), Counter()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waited.update([threading.get_ident()]))

    async def rank(transport):
        counts = Counter()
        executor = CountingExecutor(transport, counts)
        try:
            async with Actor(transport) as actor:
                trainer = build_rank(actor, job, executor=executor, tracer=NullTracer())
                losses = []
                for step in range(STEPS):
                    if step == STEPS - 1:
                        await agree(transport, "done before", asyncio.sleep(0))
                        counts.clear(), loop.clear(), waited.clear()
                        await agree(transport, "cleared", asyncio.sleep(0))
                    losses.append((await trainer.step(step)).loss)
            return counts, losses
        finally:
            executor.close()

    async def everyone():
        with Counting(loop):
            return await asyncio.gather(*map(rank, world(job.plan.world_size)))

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        ranks = runner.run(everyone())
    assert sum(waited.values()) == sum(counts["run"] for counts, _ in ranks), "once after each piece of work"
    return loop, ranks


def job_of(case, **numerics):
    job = case.job(torch.float32, Momentum(), all_reduce="ring", **numerics)
    return replace(job, model=OnDevice(case.model)), job


@pytest.mark.parametrize("width", [1, 2])
def test_a_step_copies_and_waits_where_the_page_says(width, monkeypatch):
    """Per microbatch what is sent and the loss, per bucket the norm; and each way a bucket, if it is summed."""
    case = Case("one_f_one_b", 2, width, 3, layers=1, tied=False)
    job, plain = job_of(case)
    loop, ranks = counted(job, monkeypatch)
    (first, found), (last, _) = ranks[:2]
    each, expected = case.microbatches, on_ranks(plain, trained_losses)[0]
    assert first["to the host"] == each + 1, "activations, the norm"
    assert last["to the host"] == 2 * each + 1, "losses, gradients, the norm"
    assert first["to the device"] == 2 * each, "token ids, gradients"
    assert last["to the device"] == 2 * each, "activations, targets"
    assert first["run"] == 2 * each + 2, "forwards, backwards, the norm, the update"
    assert loop["to the host"] == loop["to the device"] == (2 * width if width > 1 else 0), "the sum of each bucket"
    assert not any(counts["waits"] for counts in (loop, first, last))
    assert found == pytest.approx(expected, rel=1e-6)


def test_a_backward_in_halves_copies_and_waits_as_a_whole_one(monkeypatch):
    """A weight half neither sends nor receives."""
    job, plain = job_of(Case("zb_h1", 3, 1, 4, layers=1, tied=False))
    loop, ranks = counted(job, monkeypatch)
    counts, each = [counts for counts, _ in ranks], job.plan.microbatches
    assert [one["to the host"] for one in counts] == [each + 1, 2 * each + 1, 2 * each + 1], "as of 1F1B"
    assert [one["to the device"] for one in counts] == 3 * [2 * each]
    assert [one["run"] for one in counts] == 3 * [3 * each + 2], "forwards, both halves, and once a step as of 1F1B"
    assert not any(one["waits"] for one in (loop, *counts))
    assert not loop["to the host"] + loop["to the device"]
    assert ranks[0][1] == pytest.approx(on_ranks(plain, trained_losses)[0], rel=1e-6)


def test_ranks_that_hold_a_stage_of_each_pipe_copy_what_each_stage_does(monkeypatch):
    """Both ranks of this Chimera are first in one pipe and last in the other; the lower one owns both buckets."""
    job, plain = job_of(Case("chimera", 2, 1, 4, layers=1, tied=False))
    loop, ranks = counted(job, monkeypatch)
    (owner, found), (other, _) = ranks
    each, buckets = job.plan.microbatches // 2, 2
    assert other["to the host"] == 3 * each, "activations of one pipe, losses and gradients of the other"
    assert owner["to the host"] == 3 * each + buckets, "and the norm of each bucket"
    assert owner["to the device"] == other["to the device"] == 4 * each, "ids, gradients; activations, targets"
    assert owner["run"] == other["run"] == 2 * 2 * each + 2
    assert loop["to the host"] == loop["to the device"] == 2 * buckets, "the sum of each bucket, on both ranks"
    assert not any(counts["waits"] for counts in (loop, owner, other))
    assert found == pytest.approx(on_ranks(plain, trained_losses)[0], rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_copies_and_waits_no_more_than_a_step_without_it(dtype, monkeypatch):
    """Its losses are those of autocast on the CPU, so the stand-in is cast where the CPU is."""
    job, plain = job_of(Case("one_f_one_b", 2, 1, 3, layers=1, tied=False), autocast=dtype)
    with monkeypatch.context() as on_stand_in:
        on_stand_in.setattr(Stage, "_precision", lambda stage: torch.autocast("cpu", stage.autocast))
        loop, ranks = counted(job, monkeypatch)
    (first, found), (last, _) = ranks
    each = job.plan.microbatches
    assert (first["to the host"], last["to the host"]) == (each + 1, 2 * each + 1), "as of 1F1B"
    assert first["to the device"] == last["to the device"] == 2 * each
    assert not any(counts["waits"] for counts in (loop, first, last))
    exact = on_ranks(replace(plain, numerics=replace(plain.numerics, autocast=None)), trained_losses)[0]
    assert found == pytest.approx(on_ranks(plain, trained_losses)[0], rel=1e-6)
    assert found != pytest.approx(exact, rel=1e-6)


async def trained_losses(trainer):
    return [(await trainer.step(step)).loss for step in range(STEPS)]


VALUES, PLACES = torch.tensor([1.0, 0.0, 2.0]), torch.tensor([2, 0, 1])
WAITING = {
    "item": lambda x, at, mask: x[0].item(),
    "float": lambda x, at, mask: float(x[0]),
    "is_nonzero": lambda x, at, mask: torch.is_nonzero(x[0]),
    "branch": lambda x, at, mask: bool(mask[0]),
    "mask": lambda x, at, mask: x[mask],
    "assigned mask": lambda x, at, mask: x.__setitem__(mask, -x[:2]),
    "masked_select": lambda x, at, mask: torch.masked_select(x, mask),
    "nonzero": lambda x, at, mask: x.nonzero(),
    "where": lambda x, at, mask: torch.where(mask),
    "equal": lambda x, at, mask: torch.equal(x, x),
    "allclose": lambda x, at, mask: torch.allclose(x, x),
    "unique": lambda x, at, mask: torch.unique(x),
    "unique of rows": lambda x, at, mask: torch.unique(x, dim=0),
    "unique_consecutive": lambda x, at, mask: torch.unique_consecutive(x),
    "repeat_interleave": lambda x, at, mask: torch.repeat_interleave(x, at),
    "bincount": lambda x, at, mask: torch.bincount(at),
    "histc": lambda x, at, mask: torch.histc(x),
    "one_hot": lambda x, at, mask: nn.functional.one_hot(at),
}
PROMPT = {
    "index": lambda x, at, mask: x[at],
    "assigned index": lambda x, at, mask: x.__setitem__(at, -x),
    "masked_fill": lambda x, at, mask: x.masked_fill(mask, 0.0),
    "choice": lambda x, at, mask: torch.where(mask, x, -x),
    "repeat_interleave of known size": lambda x, at, mask: torch.repeat_interleave(x, at, output_size=3),
    "histc between bounds": lambda x, at, mask: torch.histc(x, 10, 0, 2),
    "histc between named bounds": lambda x, at, mask: torch.histc(x, min=0, max=2),
}


@pytest.mark.parametrize("name", [*WAITING, *PROMPT])
def test_an_operation_that_waits_for_the_device_is_counted_once(name):
    counts, tensors = Counter(), [StandIn(one) for one in (VALUES.clone(), PLACES, VALUES > 0)]
    with Counting(counts):
        (WAITING | PROMPT)[name](*tensors)
    assert counts["waits"] == (name in WAITING)
    assert not counts["to the host"] + counts["to the device"]


def test_a_cast_of_autocast_is_no_copy_and_a_copy_under_it_is_one():
    """A weight is cast on the device, and its gradient there and back."""
    counts, weight = Counter(), nn.Parameter(StandIn(torch.ones(2, 3)))
    with Counting(counts):
        with torch.autocast("cpu", torch.bfloat16):
            product = torch.ones(4, 2).to(DEVICE) @ weight
            assert (product.dtype, product.device) == (torch.bfloat16, DEVICE)
            assert not isinstance(product.cpu(), StandIn)
        product.float().sum().backward()
    assert isinstance(weight.grad, StandIn) and weight.grad.dtype == torch.float32
    assert (counts["to the host"], counts["to the device"], counts["waits"]) == (1, 1, 0)


def test_an_item_between_forward_and_backward_is_found(monkeypatch):
    backward = Stage.backward

    def peeking(self, key, *arguments):
        self.alive[key][1].detach().flatten()[0].item()
        return backward(self, key, *arguments)

    monkeypatch.setattr(Stage, "backward", peeking)
    case = Case("one_f_one_b", 2, 1, 3, layers=1, tied=False)
    _, ranks = counted(job_of(case)[0], monkeypatch)
    assert [counts["waits"] for counts, _ in ranks] == [3, 3]
