"""`pipelined.Trainer` in a loop of the user's own: the numbers of a plain loop, state, and what ends a job."""

import asyncio
import math
from functools import partial

import pytest
import torch
from torch import nn

import pipelined as pp
from pipelined.api.background import JobFailed
from pipelined.training.job.check_model import ModelError
from tests.numerics.test_front_door import SEED, STEPS, adam, batches, plain, row

LOSS = nn.functional.mse_loss


def trainer(plan, kind=pp.Trainer, **arguments):
    defaults = {"dtype": torch.float64, "seed": SEED, "example": torch.zeros(plan.rows, 8), "optimizer": adam}
    return kind(pp.Sequential(row()), plan, loss=LOSS, **{**defaults, **arguments})


def plan(schedule="one_f_one_b", depth=2, width=1):
    return pp.Plan(schedule, depth, width, 16 // (4 * width), 4)


def require_state(found, expected):
    assert list(found) == list(expected)
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("schedule", "depth", "width"), [("one_f_one_b", 2, 1), ("chimera", 4, 2)])
def test_steps_of_a_users_loop_train_as_a_plain_loop_does(schedule, depth, width):
    losses, state = plain(4 * width)
    with trainer(plan(schedule, depth, width)) as made:
        assert [made.step(batch).loss for batch in batches()] == pytest.approx(losses, rel=0, abs=1e-12)
        assert made.steps == STEPS
        assert repr(made) == f"Trainer({schedule}, depth={depth}, width={width}, microbatches=4, rank=0, steps={STEPS})"
        require_state(made.state_dict(), state)


@pytest.mark.parametrize(
    ("plan", "arguments"),
    [
        (plan("one_f_one_b", 2, 2), {"all_reduce": "ring"}),
        (pp.Plan("gpipe", 2, 1, 4, 4, tensor=2), {"layout": "data"}),
    ],
    ids=["replicas", "a team with a frozen layer"],
)
def test_a_step_sends_the_bytes_that_were_planned_before_it(plan, arguments):
    batch = batches()[0]
    with trainer(plan, **arguments) as made:
        planned = made.planned_bytes(batch)
        assert made.step(batch).nbytes == planned > 0


def test_an_async_trainer_trains_as_a_plain_loop_does_and_lets_the_event_loop_run():
    async def loop():
        async with trainer(plan(), pp.AsyncTrainer) as made:
            tasks = [asyncio.create_task(made.step(batch)) for batch in batches()]
            assert not any(task.done() for task in tasks)
            losses = [(await task).loss for task in tasks]
            return losses, await made.state_dict()

    losses, state = asyncio.run(loop())
    assert losses == pytest.approx(plain(4)[0], rel=0, abs=1e-12)
    require_state(state, plain(4)[1])


def test_a_step_of_which_the_caller_no_longer_waits_is_trained_all_the_same():
    async def loop():
        async with trainer(plan(), pp.AsyncTrainer) as made:
            waiting = asyncio.ensure_future(made.step(batches()[0]))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            return (await made.step(batches()[1])).loss

    assert asyncio.run(loop()) == pytest.approx(plain(4)[0][1], rel=0, abs=1e-12)


def test_a_trainer_inside_a_running_event_loop_returns_values():
    async def cell():
        with trainer(plan()) as made:
            return [made.step(batch).loss for batch in batches()]

    assert asyncio.run(cell()) == pytest.approx(plain(4)[0], rel=0, abs=1e-12)


def test_the_evaluated_loss_is_that_of_the_exported_state(tmp_path):
    inputs, targets = batches()[0]
    with trainer(plan("chimera", 4)) as made:
        made.step(batches()[1])
        found = made.evaluate([(inputs[:7], targets[:7]), (inputs[7:], targets[7:])])
        made.export(tmp_path / "state.pt")
    model = nn.Sequential(*[build() for build in row()]).double().eval()
    model.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert found == pytest.approx(LOSS(model(inputs), targets).item(), rel=0, abs=1e-12)


class Tied(nn.Module):
    """Two names of one weight, buffers, and a parameter that the forward does not use."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.last.weight, self.unused = self.first.weight, nn.Parameter(torch.arange(3.0))

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


@pytest.mark.parametrize(
    ("model", "plan", "layout"),
    [
        (lambda: pp.trace(Tied(), torch.zeros(4, 8)), plan(), None),
        (lambda: pp.Sequential(row()), pp.Plan("gpipe", 2, 1, 4, 4, tensor=2), "data"),
        (lambda: pp.Sequential(row()), pp.Plan("gpipe", 2, 1, 4, 4, tensor=2), "megatron"),
    ],
    ids=["tied, with buffers", "a team, replicated", "a team, split"],
)
def test_an_exported_file_has_the_bits_and_the_names_of_the_state(model, plan, layout, tmp_path):
    with pp.Trainer(model(), plan, loss=LOSS, optimizer=adam, layout=layout) as made:
        inputs, targets = batches()[0]
        made.step((inputs.float(), targets.float()))
        state = made.state_dict()
        made.export(tmp_path / "state.pt")
    found = torch.load(tmp_path / "state.pt", weights_only=True)
    assert list(found) == list(state)
    assert all(torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in state.items())


def test_a_loop_resumes_at_another_depth(tmp_path):
    with trainer(plan(depth=2)) as made:
        for batch in batches()[:3]:
            made.step(batch)
        assert made.save(tmp_path).name == "step-00000003"
    with trainer(plan("gpipe", depth=4)) as made:
        assert made.load(tmp_path) == 3
        losses = [made.step(batch).loss for batch in batches()[3:]]
        made.save(tmp_path)
        require_state(made.state_dict(), plain(4)[1])
    assert losses == pytest.approx(plain(4)[0][3:], rel=0, abs=1e-12)


def test_the_state_of_before_the_first_step_trains_anew_with_momentum_too(tmp_path):
    with trainer(plan(), optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9)) as made:
        made.save(tmp_path)
        losses = [made.step(batch).loss for batch in batches()[:3]]
        made.load(tmp_path)
        assert [made.step(batch).loss for batch in batches()[:3]] == losses


def test_a_failed_export_changes_neither_the_job_nor_an_earlier_file(tmp_path):
    with trainer(plan()) as made:
        with pytest.raises(pp.UsageError, match=r"cannot write .*state.pt \(No such file.*\); name a"):
            made.export(tmp_path / "missing" / "state.pt")
        assert made.step(batches()[0]).loss
        made.export(tmp_path / "state.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]


def test_an_earlier_run_is_not_overwritten(tmp_path):
    for refused in (False, True):
        with trainer(plan()) as made:
            made.step(batches()[0])
            if refused:
                with pytest.raises(pp.UsageError, match="holds checkpoints of an earlier run"):
                    made.save(tmp_path)
            else:
                made.save(tmp_path)


def test_a_refused_batch_leaves_the_job_as_it_was():
    inputs, targets = batches()[0]
    with trainer(plan()) as made:
        with pytest.raises(pp.UsageError, match=r"15 rows of inputs and 16 of targets"):
            made.step((inputs[1:], targets))
        for call in (made.step, lambda batch: made.evaluate([batch])):
            with pytest.raises(ModelError, match=r"rejected the inputs \(shape \(4, 7\)"):
                call((inputs[:, 1:], targets))
        with pytest.raises(pp.UsageError, match=r"loss or gradient norm of step 0 .* is not finite"):
            made.step((inputs * math.nan, targets))
        losses = [made.step(batch).loss for batch in batches()]
    assert losses == pytest.approx(plain(4)[0], rel=0, abs=1e-12)


class Counted(nn.Module):
    """It writes a buffer by itself."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x):
        if self.training:
            self.seen.mul_(0.5).add_(x.detach().sum(0))
        return x


@pytest.mark.parametrize("schedule", ["one_f_one_b", "pipedream"])
def test_a_refused_batch_leaves_a_buffer_that_a_layer_writes(schedule):
    inputs, targets = batches()[0]
    model, given = [Counted, lambda: nn.Linear(8, 8)], {"loss": LOSS, "optimizer": adam, "dtype": torch.float64}
    with pp.Trainer(model, plan(schedule), **given) as made:
        with pytest.raises(pp.UsageError, match=r"step 0 .* is not finite"):
            made.step((inputs * math.nan, targets))
        assert not made.state_dict()["0.seen"].any()
        if schedule == "one_f_one_b":
            made.step((inputs, targets))
            expected = Counted().double()
            for x in inputs.split(4):
                expected(x)
            torch.testing.assert_close(made.state_dict()["0.seen"], expected.seen)


@pytest.mark.parametrize("schedule", ["pipedream", "pipedream_2bw"])
def test_without_a_flush_a_step_that_is_not_finite_is_undone_by_a_load(schedule, tmp_path):
    inputs, targets = batches()[1]
    with trainer(plan(schedule)) as made:
        made.step(batches()[0])
        made.save(tmp_path)
        losses = [made.step(batch).loss for batch in batches()[1:]]
        made.load(tmp_path)
        with pytest.raises(pp.UsageError, match=r"step 1 .* not finite .*stages were updated.* load a checkpoint or"):
            made.step((inputs * math.nan, targets))
        assert not all(value.isfinite().all() for value in made.state_dict().values())
        made.load(tmp_path)
        assert [made.step(batch).loss for batch in batches()[1:]] == losses


def test_an_error_in_a_layer_is_raised_in_the_users_loop_and_ends_the_job(capsys):
    def failing(output, targets):
        raise ValueError("no such loss")

    with pp.Trainer([nn.ReLU, lambda: nn.Linear(8, 8)], plan(), loss=failing, optimizer=adam) as made:
        with pytest.raises(Exception, match="no such loss"):
            made.step((torch.zeros(16, 8), torch.zeros(16, 8)))
        with pytest.raises(JobFailed, match=r"^the job has ended with exit code 1, and .*no such loss"):
            made.step((torch.zeros(16, 8), torch.zeros(16, 8)))
    assert "no such loss" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": [lambda: nn.Linear(8, 8)]}, "2"),
        ({"model": [nn.ReLU, nn.ReLU]}, "nothing to train"),
        ({"optimizer": lambda parameters: parameters}, "`optimizer` returns a value of type list"),
    ],
)
def test_an_impossible_trainer_is_refused_at_once(arguments, message, capsys):
    given = {"model": row(), "optimizer": adam, **arguments}
    with pytest.raises(pp.UsageError, match=message):
        pp.Trainer(given["model"], plan(), loss=LOSS, optimizer=given["optimizer"])
    assert not capsys.readouterr().err  # the exception says it


def test_a_scheduler_is_where_it_was_after_the_state_of_an_earlier_step_is_loaded(tmp_path):
    def halved(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    with trainer(plan(), lr_scheduler=halved) as made:
        rates = [made.step(batch).lr for batch in batches()[:2]]
        made.save(tmp_path)
        third = made.step(batches()[2])
        made.load(tmp_path)
        again = made.step(batches()[2])
    assert [*rates, third.lr] == [0.01, 0.005, 0.0025]
    assert (again.lr, again.loss) == (third.lr, third.loss)


def test_a_refused_evaluation_leaves_the_job_as_it_was(tmp_path):
    class Folded(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.outer(self.inner(x).reshape(4, 8))

    traced = pp.trace(Folded(), torch.zeros(4, 8))
    batch = (torch.ones(16, 8), torch.ones(16, 8))
    with pp.Trainer(traced, plan(), loss=LOSS, optimizer=adam) as made:
        with pytest.raises(pp.UsageError, match="no rows to evaluate"):
            made.evaluate([])
        with pytest.raises(pp.UsageError, match=r"`batches` is a NoneType, which has no batches; give an iterable"):
            made.evaluate(None)
        with pytest.raises(pp.UsageError, match=r"\(3, 8\)"):
            made.evaluate([(torch.ones(3, 8), torch.ones(3, 8))])
        with pytest.raises(pp.UsageError, match=r"\(4, 9\)"):
            made.step((torch.ones(16, 9), torch.ones(16, 8)))
        with pytest.raises(pp.UsageError, match="keep must be at least 1"):
            made.save(tmp_path, keep=0)
        assert made.step(batch).step == 0 and made.evaluate([batch]) > 0


async def own_order(worker):
    for op in (worker.forward, worker.backward):
        for _ in worker.stage_map.microbatches[0]:
            await op(0, worker.index)


def test_a_plan_takes_a_schedule_that_is_a_function():
    losses = []
    for schedule in (own_order, "gpipe"):
        with trainer(pp.Plan(schedule, 2, 1, 4, 4)) as made:
            losses.append(made.step(batches()[0]).loss)
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("arrangement", "same"),
    [
        ({"depth": 2, "microbatches": 4}, plan()),
        ({"schedule": "chimera", "depth": 4, "microbatches": 4, "width": 1, "pipes": 4}, None),
    ],
)
def test_a_trainer_takes_the_arrangement_as_train_does(arrangement, same):
    given = {"dtype": torch.float64, "seed": SEED, "optimizer": adam, "loss": LOSS, "example": torch.zeros(4, 8)}
    with pp.Trainer(pp.Sequential(row()), **given, **arrangement) as made:
        assert made.plan == (same or pp.Plan("chimera", 4, 1, 4, 4, knobs={"pipes": 4}))
        assert [made.step(batch).loss for batch in batches()] == pytest.approx(plain(4)[0], rel=0, abs=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 2}, r"the rows of a microbatch are not known; give example="),
        (
            {"schedule": "auto", "example": torch.zeros(4, 8)},
            r'"auto" measures a whole batch.*result of pipelined.plan',
        ),
        ({"plan": plan(), "depth": 2}, r"plan= sets depth"),
        ({"plan": plan(), "optimiser": adam}, r"optimiser.*optimizer"),
    ],
)
def test_a_trainer_with_an_arrangement_that_is_open_or_set_twice_is_refused(arguments, message, capsys):
    with pytest.raises(pp.UsageError, match=message):
        pp.Trainer(pp.Sequential(row()), loss=LOSS, optimizer=adam, **arguments)
    assert capsys.readouterr().err == ""
