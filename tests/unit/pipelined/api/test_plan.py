"""`pipelined.plan`: sizes against closed forms, and the answers for a user's own layers."""

import asyncio
import json
import re
import time
from functools import partial

import pytest
import torch
from torch import nn

import pipelined as pp
from pipelined.api.arrangement import RequestedArrangement
from pipelined.api.planning.layer_row_model import LayerRowModel
from pipelined.planner import read_plan
from pipelined.simulation.memory import rank_memory
from pipelined.training.job.numerics import Numerics
from pipelined.training.models.sequential import LayeredModel

ROWS, IN, WIDE, OUT, F = 12, 16, 32, 8, 4
LAYERS = [lambda: nn.Linear(IN, WIDE), nn.ReLU, lambda: nn.Linear(WIDE, OUT)]
STEP = torch.ones(ROWS, IN), torch.zeros(ROWS, dtype=torch.int64)


def planned_layers(layers=LAYERS, optimizer=torch.optim.AdamW, step=STEP, dtype=torch.float32):
    model = LayeredModel(pp.Sequential(layers), nn.functional.cross_entropy, 0, step[0])
    return LayerRowModel(model, step, optimizer, Numerics(dtype=dtype), {})


def mlp(**settings):
    return pp.plan(LAYERS, STEP, loss=nn.functional.cross_entropy, costs={"flops": 1e9}, **settings)


def test_a_plan_is_one_that_training_takes():
    """With masters a schedule needs a flush, and a delayed update is made in host memory."""
    settings = {"schedule": "async_1f1b", "stale": True, "ranks": 2, "depth": 2}
    assert mlp(**settings).plan.schedule == "async_1f1b"
    with pytest.raises(pp.UsageError, match="no schedule with a flush"):
        mlp(**settings, offload_optimizer=True)
    with pytest.raises(pp.UsageError, match="add `offload_optimizer=`"):
        mlp(ranks=2, delayed_update=True)


def test_operations_are_those_of_the_products():
    assert planned_layers().operations == [2 * IN * WIDE, 0, 2 * WIDE * OUT]


def test_a_stage_keeps_its_input_its_output_and_what_its_backward_needs():
    first, last = planned_layers().workload(pp.Plan("gpipe", 2, 1, 3, 4)).stages  # cut before the ReLU
    assert first.boundary_bytes == first.activation_bytes == 3 * (IN + WIDE) * F
    assert first.message_bytes == 3 * WIDE * F and last.boundary_bytes == 3 * (WIDE + OUT) * F
    entropy = 3 * OUT * F + 3 * 8 + F  # its probabilities, the targets, and their weight
    assert last.activation_bytes == last.boundary_bytes + 3 * WIDE * F + entropy


class NeedsValues(torch.optim.AdamW):
    """An optimizer that looks at a value of each gradient."""

    def step(self, closure=None):
        assert all(float(parameter.grad.sum()) == 0 for group in self.param_groups for parameter in group["params"])
        return super().step(closure)


@pytest.mark.parametrize(
    "optimizer, numbers, scalars",
    [
        (torch.optim.AdamW, 2, 1),
        (torch.optim.Adagrad, 1, 1),
        (NeedsValues, 2, 1),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1, 0),
        (lambda p: torch.optim.SGD(p, lr=0.1), 0, 0),
    ],
)
def test_the_optimizers_state_is_measured(optimizer, numbers, scalars):
    weights = IN * WIDE + WIDE + WIDE * OUT + OUT
    (only,) = planned_layers(optimizer=optimizer).workload(pp.Plan("gpipe", 1, 1, 3, 4)).parameters
    assert (only.elements, only.tensors) == (weights, 4)
    assert only.optimizer_bytes == numbers * F * weights + scalars * F * 4


def test_a_state_is_measured_without_the_memory_of_its_values_where_that_can_be():
    seen = set()

    class Watched(torch.optim.AdamW):
        def step(self, closure=None):
            seen.update(parameter.device.type for group in self.param_groups for parameter in group["params"])
            return super().step(closure)

    assert planned_layers(optimizer=Watched).workload(pp.Plan("gpipe", 1, 1, 3, 4)).parameters
    assert seen == {"meta"}


def test_frozen_parameters_and_buffers_are_held_and_not_summed():
    frozen = nn.Linear(IN, OUT).requires_grad_(False)
    row = nn.Sequential(frozen, nn.BatchNorm1d(OUT))
    (stage,) = (workload := planned_layers(row).workload(pp.Plan("gpipe", 1, 1, 3, 4))).stages
    assert stage.frozen_bytes == (IN * OUT + OUT) * F + 2 * OUT * F + 8
    assert workload.parameters[0].elements == 2 * OUT
    held = rank_memory(workload, pp.Plan("gpipe", 1, 1, 3, 4).stage_map, 0, ())
    assert (held.weights, held.gradients) == (stage.frozen_bytes + 2 * OUT * F, 2 * OUT * F)


def test_a_tied_parameter_is_one_with_several_holders():
    once = nn.Linear(IN, IN)
    workload = planned_layers(nn.Sequential(once, nn.ReLU(), once)).workload(pp.Plan("gpipe", 3, 1, 3, 4))
    assert [(group.stages, group.elements) for group in workload.parameters] == [((0, 2), IN * IN + IN)]


def test_a_layer_that_needs_values_is_measured_with_values():
    class Shifted(nn.Module):
        def forward(self, x):
            return x + float(x.sum())

    assert planned_layers([Shifted, *LAYERS]).operations == [0, 2 * IN * WIDE, 0, 2 * WIDE * OUT]


def test_a_stated_speed_gives_the_table_and_the_plan_file(tmp_path):
    found = mlp(ranks=2)
    told = json.loads(json.dumps(found.to_dict()))
    assert told["plan"] == found.plan.to_dict() and told["best"][0]["step_s"] == found.step_s
    assert repr(found).startswith("2 ranks, 12 rows a step\n") and f"; {found.why}" in repr(found)
    found.save(tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json").plan == found.plan
    assert found.picture().title.startswith(f"{found.plan.schedule}, D = {found.plan.depth}")


def test_what_is_chosen_is_kept_and_less_memory_makes_another_plan():
    assert mlp(ranks=2, schedule="chimera", depth=2, recompute=True).plan.schedule == "chimera"
    assert mlp(ranks=2).plan.depth == 1
    assert mlp(ranks=2, memory_limit=12_000).plan.depth == 2


def test_exact_sums_are_planned_with_microbatches_of_one_size():
    rows = mlp(ranks=2, schedule="chimera").to_dict()["best"]
    assert {row["scale"] for row in rows} > {"direct"}
    exact = mlp(ranks=2, schedule="chimera", exact_sums=True).to_dict()["best"]
    assert {row["scale"] for row in exact} == {"direct"}


def test_a_call_that_compiles_is_planned_so():
    call = RequestedArrangement(schedule="auto", depth=2)
    assert call.fixed_settings(Numerics(compile=True)) == {"depth": 2, "compile": True}


def test_stages_are_timed_where_no_speed_is_stated():
    fixed = {"schedule": "gpipe", "depth": 2, "microbatches": 2}
    found = pp.plan(LAYERS, STEP, loss=nn.functional.cross_entropy, ranks=2, **fixed)
    assert found.plan == pp.Plan("gpipe", 2, 1, 6, 2) and found.to_dict()["found"]["costs"]


def test_what_is_timed_and_tried_is_compiled_where_training_is(monkeypatch):
    compiled, compile = [], torch.compile

    def translated(module, **given):
        compiled.append(len([*module.children()]))
        return compile(module, **given, backend="eager")

    monkeypatch.setattr(torch, "compile", translated)
    fixed = {"schedule": "one_f_one_b", "depth": 1, "microbatches": 2, "recompute": False}
    found = pp.plan(LAYERS, STEP, loss=nn.functional.cross_entropy, compile=True, tries=1, **fixed)
    assert {row["op"] for row in found.to_dict()["found"]["costs"]} == {"F", "B", "U"}
    timed, tried = [1, 1, 1], [3, 3]
    assert compiled == timed + tried, "layers of a stage; a plan is tried twice"


def test_a_plan_that_cannot_be_compiled_is_refused_before_anything_is_timed(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(pp.UsageError, match="neither exact sums nor"):
        mlp(ranks=2, compile=True, exact_sums=True)
    with pytest.raises(pp.UsageError, match="compiler, which is missing"):
        pp.plan(LAYERS, STEP, compile=True, ranks=2, schedule="gpipe", depth=2, microbatches=2)
    assert mlp(ranks=2, compile=True).plan.world_size == 2, "at a stated speed nothing is compiled"


class SlowSGD(torch.optim.SGD):
    """An optimizer with a known price: an update takes 20 ms, whatever it updates."""

    def step(self, closure=None):
        time.sleep(0.02)
        return super().step(closure)


def test_updates_are_timed_with_the_users_optimizer():
    fixed = {"schedule": "gpipe", "depth": 1, "microbatches": 1, "recompute": False, "tries": 0}
    slow = partial(SlowSGD, lr=0.1)
    assert pp.plan(LAYERS, STEP, loss=nn.functional.cross_entropy, ranks=1, optimizer=slow, **fixed).step_s > 0.02


def test_a_traced_model_is_planned_with_microbatches_that_it_takes():
    module = nn.Sequential(*[build() for build in LAYERS])
    rows = pp.plan(pp.trace(module, STEP[0]), STEP, ranks=2, schedule="gpipe", depth=2, costs={"flops": 1e9}).to_dict()
    assert {row["microbatch"] for row in rows["best"]} == {2, 3, 4, 6, 12}  # it was traced for two rows or more


def test_it_plans_inside_a_running_loop_too():
    async def cell():
        return mlp(ranks=2)

    assert asyncio.run(cell()).plan.world_size == 2


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"ranks": 0}, "ranks must be at least 1"),
        ({"ranks": 2, "memory_limit": 10.0}, "no plan fits the memory"),
        ({"ranks": 2, "costs": {"speed": 1}}, "`costs=` knows no 'speed'; known: flops, overhead, coding"),
        ({"ranks": 2, "tries": 2}, "`tries=2` cannot run plans where `costs=` says what they cost"),
        (
            {"ranks": 2, "widht": 2},
            "unknown argument 'widht' .a schedule takes: .*; did you mean width. correct the name",
        ),
        ({"ranks": 5}, "no schedule with a flush uses all ranks"),
        ({"ranks": 2, "memory_limit": 10.0, "costs": None}, "no plan fits the memory"),
        ({"ranks": 2.0}, "ranks must be a whole number, such as 4 .got: float 2.0"),
        ({"ranks": 2, "tries": "2"}, "tries must be a whole number, such as 4 .got: str '2'"),
        ({"ranks": 2, "stale": "yes"}, "stale is 'yes', which is neither True nor False"),
        ({"ranks": 2, "memory_limit": "16G"}, "memory_limit must be a number, such as 1.5 .got: str '16G'"),
        ({"ranks": 2, "memory_limit": float("nan")}, "memory_limit must be at least 1 .it is nan"),
        ({"ranks": 2, "costs": {"flops": "fast"}}, "`costs=`: flops must be a number, such as 1.5 .got: str 'fast'"),
        ({"ranks": 2, "costs": 1e9}, r"`costs=` is 1000000000.0, without names; .* such as {'flops': 1e10}"),
        (
            {"ranks": 2, "optimizer": torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)},
            r"`optimizer` is an optimizer already \(SGD\); every rank builds its own: give a function",
        ),
        ({"ranks": 2, "optimizer": lambda parameters: parameters[7]}, "`optimizer` for .* IndexError.*; correct it"),
    ],
)
def test_a_mistake_is_one_exception_with_a_remedy(settings, message):
    with pytest.raises(pp.UsageError, match=message):
        pp.plan(LAYERS, STEP, **{"costs": {"flops": 1e9}, **settings})


def trained(**settings):
    optimizer = partial(torch.optim.SGD, lr=0.1)
    return pp.train(LAYERS, [STEP] * 2, loss=nn.functional.cross_entropy, optimizer=optimizer, **settings)


def test_schedule_auto_trains_by_the_plan_that_is_found():
    plain = trained(schedule="gpipe", depth=2, microbatches=2)
    assert trained(schedule="auto", depth=2, microbatches=2).losses == pytest.approx(plain.losses, rel=1e-6)


def test_a_plan_is_trained_by():
    found = mlp(ranks=2, schedule="chimera", depth=2, microbatches=2, recompute=True)
    plain = trained(schedule="chimera", depth=2, microbatches=2, recompute=True)
    assert trained(plan=found).losses == plain.losses
    optimizer = partial(torch.optim.SGD, lr=0.1)
    with pp.Trainer(
        LAYERS, found, loss=nn.functional.cross_entropy, optimizer=optimizer, example=STEP[0][:6]
    ) as trainer:
        assert [trainer.step(STEP).loss for _ in range(2)] == plain.losses


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"stepz": 1}, "unknown argument 'stepz'"),
        ({"depth": 8, "pipes": 2}, r"plan= sets depth \(given too: depth, pipes\); leave it out"),
        ({"recompute": False}, "plan= sets recompute"),
    ],
)
def test_an_argument_beside_a_planned_arrangement_is_refused(settings, message):
    found = mlp(ranks=1)
    with pytest.raises(pp.UsageError, match=message):
        trained(plan=found, **settings)


@pytest.mark.parametrize("recompute", [None, True])
def test_train_takes_a_plan_as_a_trainer_does_with_recompute_beside_it(recompute):
    plan, plain = pp.Plan("gpipe", 2, 1, 6, 2), trained(schedule="gpipe", depth=2, microbatches=2)
    assert trained(plan=plan, recompute=recompute).losses == plain.losses


def test_a_layout_beside_a_plan_that_leaves_it_open_splits_the_layers():
    plan, plain = pp.Plan("gpipe", 1, 1, 6, 2, tensor=2), trained(schedule="gpipe", depth=1, microbatches=2)
    assert trained(plan=plan, layout="data").losses == pytest.approx(plain.losses, rel=1e-6)


@pytest.mark.parametrize("name, value", [("recompute", False), ("layout", "data")])
def test_a_trainer_refuses_what_a_planned_arrangement_sets_as_train_does(name, value):
    found, settings = mlp(ranks=1), {"loss": nn.functional.cross_entropy, "optimizer": torch.optim.SGD}
    with pytest.raises(pp.UsageError, match=rf"plan= sets {name} \(given too: {name}\); leave it out"):
        pp.Trainer(LAYERS, found, **settings, **{name: value})


def test_the_variables_of_plan_are_no_arguments():
    with pytest.raises(pp.UsageError) as refused:
        mlp(ranks=1, launches=1)
    assert "did you mean" not in str(refused.value)


@pytest.mark.parametrize(
    "model, batch, message",
    [
        (LAYERS, (STEP[0][:6], STEP[1][:6]), "microbatches of other rows (rows planned:"),
        (LAYERS[:1], STEP, "plan= is a plan for another model"),
    ],
)
def test_a_plan_for_another_model_or_batch_is_refused(model, batch, message):
    found = pp.plan(model, batch, ranks=1, costs={"flops": 1e9})
    with pytest.raises(pp.UsageError, match=re.escape(message)):
        trained(plan=found)
