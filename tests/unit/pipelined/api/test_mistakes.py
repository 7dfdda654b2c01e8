"""What newcomers get wrong, against `pipelined.train`: refused before the first step with a remedy, or right."""

import asyncio
import itertools
import math
import re

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import pipelined as pp

ROWS, WIDTH, SEED = 16, 8, 1


def linear(to=WIDTH, of=WIDTH):
    return lambda: nn.Linear(of, to)


def batches(rows=ROWS, targets=ROWS):
    generator = torch.Generator().manual_seed(7)
    return [(torch.randn(rows, WIDTH, generator=generator).double(), torch.ones(targets, WIDTH).double())] * 2


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def trained(layers, given=None, **more):
    settings = {"depth": 4, "microbatches": 4, "loss": nn.functional.mse_loss, "optimizer": adam}
    settings |= {"dtype": torch.float64, "seed": SEED, **more}
    return pp.train(layers, batches() if given is None else given, **settings)


PLAN = pp.Plan("gpipe", depth=4, width=1, microbatch_size=4, microbatches=4)
OPEN = {"depth": None, "microbatches": None}
"""Of `trained`, where a plan sets them."""


class Endless(IterableDataset):
    def __iter__(self):
        return itertools.repeat((torch.ones(WIDTH), torch.ones(WIDTH)))


class NoTensor(nn.Module):
    def forward(self, x):
        return len(x)


class Skip(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.inner(x)


class HalvesAView(Skip):
    def forward(self, x):
        x.view(-1).mul_(0.5)
        return super().forward(x)


values = itertools.count()


def differently():
    """A layer with other values each time that it is built, whatever the seed."""
    layer = nn.Linear(WIDTH, WIDTH)
    nn.init.constant_(layer.weight, next(values))
    return layer


async def unlike(worker):
    """Another order each time that it is asked: the second rank proves another program than the first."""
    microbatches = len(worker.stage_map.microbatches[0])
    together = 1 + next(values) // worker.stage_map.workers % 2
    for first in range(0, microbatches, together):
        for verb in (worker.forward, worker.backward):
            for _ in range(first, min(first + together, microbatches)):
                await verb(0)


four = [linear()] * 4
foreign = nn.Parameter(torch.ones(3))
REFUSED = {
    "a module that is no row": (
        Skip(),
        {},
        "the model must be a row of layers .got: Skip.; give pp.trace.model, example.",
    ),
    "layers that are built": ([nn.Linear(8, 8)] * 4, {}, "built already; give a callable that builds it"),
    "layers that do not chain": ([*four, linear(of=9)], {}, "layer 4 .* rejected the output of layer 3 .shape .4, 8."),
    "a layer that gives no tensor": ([*four, NoTensor], {}, "layer 4 .*NoTensor.* gives "),
    "a parameter tied by one name with other shapes": (
        [pp.tied("a", linear()), *four, pp.tied("a", linear(9))],
        {},
        "weight is tied between layers 0 and 5 and has other shapes",
    ),
    "replicas with different values": (
        pp.Sequential([differently] * 4, initial="keyed"),
        {"schedule": "chimera"},
        "ranks . and . hold different values of .* before the first step; let",
    ),
    "a loss without a gradient": (
        four,
        {"loss": lambda output, targets: (output.detach() - targets).square().mean()},
        "the loss does not depend on the model's outputs in a way that has a gradient; compute it",
    ),
    "fewer layers than stages": ([linear()], {}, r"4.*1|1.*4"),
    "targets with other rows": (four, {"given": batches(targets=3)}, "16 rows of inputs and 3 of targets"),
    "a batch that does not divide": (four, {"given": batches(18, 18)}, "a batch of 18 rows cannot be cut into 4"),
    "an all-reduce that is no text": (four, {"all_reduce": None}, "unknown all-reduce algorithm 'None'; known: auto"),
    "a codec that is no text": (four, {"compress": 3}, "compress: unknown codec '3'; known: "),
    "a transport that is no text": (four, {"transport": None}, "unknown transport 'None'; known: auto, local"),
    "a layout that is no text": (four, {"tensor": 2, "layout": 3}, "no layout: '3' .*; write data or megatron"),
    "a seed of more than 64 bits": (four, {"seed": 1 << 64}, "which torch's generators do not take; give one of 64"),
    "a depth that no schedule has": (four, {"depth": 10**9, "microbatches": None}, "depth is .* can be 65536 at most"),
    "a depth that this schedule has not": (
        four,
        {"schedule": "chimera", "depth": 3, "microbatches": None},
        r"chimera needs an even depth \(depth: 3\)",
    ),
    "a layer without a size": (
        [lambda: nn.LazyLinear(WIDTH), *four],
        {},
        r"weight of layer 0 has no shape before it has run; give sizes, as nn.Linear\(8, 8\)",
    ),
    "a batch without rows": (four, {"given": batches(0, 0)}, "inputs of .* is not made of tensors with rows"),
    "a batch that is no pair": (four, {"given": [torch.ones(16, 8)]}, "not a pair .inputs, targets."),
    "no number of steps": (four, {"given": iter(batches())}, "so the number of steps is unknown; give steps="),
    "an optimizer of other parameters": (
        four,
        {"optimizer": lambda parameters: torch.optim.SGD([foreign], lr=0.1)},
        r"updates a tensor that is not the model's \(shape: \(3,\)\); build it from the parameters",
    ),
    "an optimizer that is None": (
        four,
        {"optimizer": lambda parameters: None},
        "returns a value of type NoneType; let it return",
    ),
    "an optimizer that is built": (
        four,
        {"optimizer": adam([foreign])},
        r"`optimizer` is an optimizer already \(AdamW\); every rank builds its own: give a function of a list",
    ),
    "an optimizer with a closure": (
        four,
        {"optimizer": torch.optim.LBFGS},
        "LBFGS needs a closure that computes the loss again.*; choose an optimizer without a closure",
    ),
    "a schedule in another order on each rank": (
        [linear()] * 2,
        {"schedule": unlike, "depth": 2},
        r"other instructions than those of rank 0 \(order of .*unlike: .* here, .*\); give all ranks the same code",
    ),
    "no list": (linear(), {}, "the model must be a list of callables that build layers .got: function."),
    "a loss that is a class": (four, {"loss": nn.MSELoss}, r"the loss is the class MSELoss.*; give MSELoss\(\)"),
    "no loss": (four, {"loss": None}, "the loss is a NoneType, not a function"),
    "a misspelt argument": (
        four,
        {"checkpiont": 1},
        "unknown argument 'checkpiont'.*; did you mean checkpoint. correct the name",
    ),
    "a loss for each row": (four, {"loss": lambda x, y: (x - y).mean(1)}, "the loss gives no scalar"),
    **{
        f"a loss of count {count}": (
            four,
            {"loss": lambda x, y, count=count: ((x - y).sum(), count)},
            rf"the count that the loss returned must be a number from 0 up \(count: {count}\); let it return the sum",
        )
        for count in ("ten", -1, math.nan, math.inf)
    },
    "a loss that is not finite": (
        four,
        {"loss": lambda x, y: (x - y).mean() / 0},
        "loss or gradient norm of step 0 .counted from 0. is not finite",
    ),
    "a step without a target that counts": (
        four,
        {"loss": lambda x, y: ((x - y).sum() * 0, 0)},
        "the counts of step 0 .counted from 0. are all 0, so it has no loss; give batches with at least one target",
    ),
    "nothing to train": ([lambda: linear()().requires_grad_(False)] * 4, {}, "the model has nothing to train"),
    "a negative save_every": (four, {"save_every": -3}, r"save_every must be at least 0 \(it is -3\)"),
    "save_every without a checkpoint": (
        four,
        {"save_every": 2},
        r"save_every=2 saves nothing without a directory; give `checkpoint=`",
    ),
    "an empty path": (four, {"resume": ""}, "a path must be a pathlib.Path or a str that is not empty .got: str ''"),
    "no checkpoint to keep": (four, {"keep": 0}, r"keep must be at least 1 \(it is 0\)"),
    "a scheduler that follows a metric": (
        four,
        {"lr_scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau},
        "ReduceLROnPlateau follows a metric.*; give another one, such as CosineAnnealingLR",
    ),
    "a scheduler that is built": (
        four,
        {"lr_scheduler": torch.optim.lr_scheduler.StepLR(adam([foreign]), 1)},
        "`lr_scheduler` is of type StepLR, and every rank builds one for its optimizer; give a function",
    ),
    "an empty schedule": (four, {"schedule": ""}, "unknown schedule ''; known: "),
    "an argument of plan beside auto": (four, {"schedule": "auto", "tries": 0}, "unknown argument 'tries'"),
    "auto without whole batches": (
        four,
        {
            "schedule": "auto",
            "given": pp.Feed(lambda s, m: torch.ones(4, 8), lambda s, m: torch.ones(4, 8)),
            "steps": 1,
        },
        'schedule="auto" measures a whole batch, and a Feed has none; give batches, or name a schedule',
    ),
    "a depth that is a text": (four, {"depth": "4"}, "depth must be a whole number, such as 4 .got: str '4'"),
    "a clip that is a text": (four, {"clip": "x"}, "clip must be a number, such as 1.5 .got: str 'x'"),
    "a checkpoint that is a number": (four, {"checkpoint": 3}, "a path must be a pathlib.Path or a str .*got: int 3"),
    "a backend of the compiler": (
        four,
        {"compile": "inductor"},
        "compile is 'inductor', which is neither True nor False; give True, which compiles by torch's default backend",
    ),
    "a background save that is a text": (four, {"async_save": "no"}, "async_save is 'no', which is neither True nor"),
    "a loader that has no length": (
        four,
        {"given": DataLoader(Endless(), batch_size=ROWS)},
        "the batches have no length, so the number of steps is unknown; give steps=",
    ),
    "batches that cannot be iterated": (
        four,
        {"given": 3, "steps": 1},
        r"`batches` is a int, which has no batches; give an iterable of .inputs, targets., or a pp.Feed",
    ),
    "a dtype that is a number": (
        four,
        {"dtype": 3},
        "dtype must be a dtype of torch, such as torch.float32 .got: int 3",
    ),
    "no dtype": (
        four,
        {"dtype": None, "autocast": True},
        "dtype must be a dtype of torch, such as torch.float32 .got: NoneType None",
    ),
    "a layer with a name of the row itself": (
        pp.Sequential({name: linear() for name in ("a", "b", "c", "_row")}),
        {},
        "'_row' cannot name a layer, nor a child of an nn.Module; give it another name",
    ),
    "no microbatches": (four, {"microbatches": 0}, r"microbatches must be at least 1 \(it is 0\)"),
    "an unknown codec": (four, {"compress": "nope"}, "compress: unknown codec 'nope'; known: bf16, .*; or none"),
    "an unknown all-reduce": (four, {"all_reduce": "nope"}, "all_reduce: unknown .* 'nope'; known: auto, "),
    "a plan that is a name": (
        four,
        {"plan": "gpipe"},
        "plan= must be a pp.Plan or the result of pp.plan .got: str 'gpipe'",
    ),
    "a size beside a plan": (four, {"plan": PLAN}, r"plan= sets depth \(given too: depth, microbatches\); leave"),
    "an arrangement to find beside a plan": (
        four,
        {"plan": PLAN, **OPEN, "schedule": "auto"},
        r"plan= sets schedule \(given too: schedule\)",
    ),
    "a layout beside a plan of one rank": (
        four,
        {"plan": PLAN, **OPEN, "layout": "data"},
        "one rank splits nothing .layout: data, tensor: 1.",
    ),
    "a plan for other rows": (
        four,
        {"plan": pp.Plan("gpipe", depth=4, width=1, microbatch_size=2, microbatches=4), **OPEN},
        "the plan is for microbatches of other rows .rows planned: 2, rows: 4.; plan for these batches",
    ),
    "settings in one argument": (
        four,
        {"schedule": "chimera", "knobs": {"pipes": 4}},
        "knobs= is not an argument; give each setting of a schedule by its own name, such as pipes=4",
    ),
    "a report that is a text": (four, {"report": "x"}, "report is 'x', which cannot be called; give a function"),
    "an unknown schedule": (four, {"schedule": "1f1b"}, "1f1b.*one_f_one_b"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_is_refused_before_the_first_step_with_a_remedy(mistake):
    layers, settings, message = REFUSED[mistake]
    steps = []
    with pytest.raises(pp.UsageError) as refused:
        trained(layers, **{"report": steps.append} | settings)
    assert re.search(message, str(refused.value), re.DOTALL), refused.value
    assert not steps


def test_a_layer_in_place_of_a_row_is_refused():
    with pytest.raises(pp.UsageError, match=r"the layers must be an nn\.Sequential, or a list .* \(got: Linear\)"):
        pp.Sequential(nn.Linear(2, 2), nn.ReLU())


def test_a_trainer_refuses_what_is_no_plan():
    with pytest.raises(pp.UsageError, match=r"plan= must be a pp\.Plan or the result of pp\.plan \(got: str 'gpipe'\)"):
        pp.Trainer(four, "gpipe", loss=nn.functional.mse_loss, optimizer=adam)


@pytest.mark.parametrize("call", ["save", "load", "export"])
def test_a_trainer_refuses_what_is_no_path_and_goes_on(call):
    with pp.Trainer(four, PLAN, loss=nn.functional.mse_loss, optimizer=adam, dtype=torch.float64) as trainer:
        with pytest.raises(pp.UsageError, match=r"^a path must be a pathlib\.Path or a str .* \(got: int 3\)"):
            getattr(trainer, call)(3)
        assert trainer.step(batches()[0]).loss > 0


def test_an_async_trainer_that_is_not_open_says_how_to_open_it():
    trainer = pp.AsyncTrainer(four, PLAN, loss=nn.functional.mse_loss, optimizer=adam)
    with pytest.raises(pp.UsageError, match=r"state_dict\(\) of .* not open; call it inside its `async with`"):
        asyncio.run(trainer.state_dict())


def test_an_async_trainer_opens_once():
    trainer = pp.AsyncTrainer(four, PLAN, loss=nn.functional.mse_loss, optimizer=adam, dtype=torch.float64)

    async def loop():
        async with trainer:
            assert (await trainer.step(batches()[0])).loss > 0
            with pytest.raises(pp.UsageError, match="this one was opened before; make another one"):
                await trainer.__aenter__()
            assert (await trainer.step(batches()[0])).step == 1
        with pytest.raises(pp.UsageError, match="this one was opened before; make another one"):
            async with trainer:
                pass

    asyncio.run(loop())


def test_a_loss_that_raises_ends_with_exit_code_1_and_says_where(capfd):
    def failing(output, targets):
        raise ZeroDivisionError("no such loss")

    with pytest.raises(pp.JobFailed, match="ended with exit code 1, and has printed why: rank 3,") as ended:
        trained(four, loss=failing)
    assert isinstance(ended.value.__cause__.__cause__, ZeroDivisionError)
    first = capfd.readouterr().err.splitlines()[0]
    assert first == (
        "rank 3, step 0: forward of microbatch 0 through stage 3 (pipe 0) failed: ZeroDivisionError('no such loss')"
    )


def test_an_error_of_the_users_own_loop_is_printed_once(capfd):
    with pytest.raises(ZeroDivisionError):
        with pp.Trainer(four, PLAN, loss=nn.functional.mse_loss, optimizer=adam, dtype=torch.float64):
            raise ZeroDivisionError("no such loop")
    printed = capfd.readouterr().err
    assert printed.startswith("rank 0 left its training loop: ZeroDivisionError('no such loop')")
    assert printed.count("left its training loop") == 2  # the message, and the end of its traceback


RIGHT = {
    "an nn.Sequential": lambda: [linear()] * 4,
    "layers with the same names inside and other shapes": lambda: [
        lambda: nn.Sequential(nn.Linear(8, 5), nn.Tanh()),
        lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh()),
        lambda: nn.Sequential(nn.Linear(7, 9), nn.Tanh()),
        lambda: nn.Sequential(nn.Linear(9, 8), nn.Tanh()),
    ],
    "dropout": lambda: [linear(), lambda: nn.Dropout(0.5), linear(), Skip, lambda: nn.Dropout(0.5), linear()],
    "writes in place": lambda: [linear(), lambda: nn.ReLU(inplace=True), linear(), Skip, nn.Tanh],
    "batch norms": lambda: [linear(), lambda: nn.BatchNorm1d(8), linear(), lambda: nn.BatchNorm1d(8), linear()],
}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("case", RIGHT)
def test_what_looks_like_a_trap_trains_as_a_plain_loop_does(case, recompute):
    torch.manual_seed(SEED)
    model = nn.Sequential(*[build() for build in RIGHT[case]()])
    given = model if case == "an nn.Sequential" else RIGHT[case]()
    done = trained(given, schedule="chimera", depth=2, recompute=recompute)
    assert done.losses == pytest.approx(plain_losses(model.double()), rel=0, abs=1e-12)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("schedule", ["chimera", "zb_h1"])
def test_a_stage_may_begin_with_a_layer_that_writes_into_its_input(schedule, recompute):
    row = [
        lambda: nn.ELU(inplace=True),
        linear(),
        HalvesAView,
        lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.2, inplace=True), nn.Sigmoid()),
    ]
    torch.manual_seed(SEED)
    model = nn.Sequential(*[build() for build in row]).double()
    done = trained(row, depth=4, schedule=schedule, recompute=recompute)
    assert done.losses == pytest.approx(plain_losses(model), rel=0, abs=1e-12)


def test_without_an_example_a_layer_says_that_it_writes_into_its_input():
    row, plan = [linear(), lambda: nn.ReLU(inplace=True)], pp.Plan("gpipe", 2, 1, 4, 4)
    with pp.Trainer(row, plan, loss=nn.functional.mse_loss, optimizer=adam, dtype=torch.float64) as trainer:
        losses = [trainer.step(batch).loss for batch in batches()]
    assert losses == trained(row, depth=1, schedule="gpipe", seed=0).losses


def plain_losses(model):
    optimizer, losses = adam(model.parameters()), []
    for step, (inputs, targets) in enumerate(batches()):
        optimizer.zero_grad()
        losses.append(0.0)
        for number, (x, y) in enumerate(zip(inputs.clone().chunk(4), targets.chunk(4), strict=True)):
            for name, layer in model.named_children():
                torch.manual_seed(pp.layer_seed(SEED, step, number, name))
                x = layer(x)
            loss = nn.functional.mse_loss(x, y) / 4
            loss.backward()
            losses[-1] += loss.item()
        optimizer.step()
    return losses


def test_a_rank_with_frozen_parameters_alone_reports_the_learning_rate_of_the_others():
    def halved(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    rates = []
    frozen = [lambda: linear()().requires_grad_(False), linear()]
    trained(frozen, depth=2, lr_scheduler=halved, clip=0.1, report=lambda report: rates.append(report.lr))
    assert rates == [1e-2, 5e-3]


@pytest.mark.parametrize("schedule", ["zb_v", "dualpipe_v", "interleaved"])
def test_the_default_depth_has_the_stages_that_a_schedule_puts_on_each_worker(schedule):
    done = pp.train(
        [linear()] * 2, batches(), loss=nn.functional.mse_loss, optimizer=adam, schedule=schedule, dtype=torch.float64
    )
    assert len(done.losses) == 2


def test_a_run_is_not_saved_among_the_checkpoints_of_another(tmp_path):
    own, foreign = tmp_path / "own", tmp_path / "foreign"
    trained(four, checkpoint=own)
    trained(four, checkpoint=foreign)
    with pytest.raises(pp.UsageError, match="holds checkpoints of another run than"):
        trained(four, steps=3, resume=own, checkpoint=foreign)
    assert trained(four, steps=3, resume=own / "step-00000002", checkpoint=own).steps == 3
