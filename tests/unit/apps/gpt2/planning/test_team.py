"""`--tensor` and `--layout`: what is run, and what is refused before torch is imported."""

import json
from dataclasses import replace
from math import ceil, prod
from re import search

import pytest

from apps.common.lm.models.gpt2_presets import shapes
from apps.common.lm.sharded.layouts import factors_of
from apps.gpt2.__main__ import main as train
from apps.gpt2.config import GPT2Flags
from apps.gpt2.job import resolve
from apps.gpt2.planning.model_to_plan import planned_model_of
from apps.gpt2.planning.plan_file import is_open
from apps.gpt2.planning.team_workload import rank_workload
from apps.gpt2.planning.workload import WorkloadOptions, workload
from pipelined.__main__ import main
from pipelined.errors import UsageError
from pipelined.programs.plan import Plan
from pipelined.sharding.operators.matmul import SplitMatmul


def test_a_team_has_depth_1_by_default_and_the_other_ranks_are_groups():
    plan = resolve(GPT2Flags(tensor=2), 4).plan
    assert (plan.depth, plan.width, plan.tensor, plan.world_size) == (1, 2, 2, 4)
    assert plan.batch == resolve(GPT2Flags(), 1).plan.batch
    assert resolve(GPT2Flags(tensor=3, layout="data"), None).plan.world_size == 3


def test_a_depth_is_that_of_teams():
    plan = resolve(GPT2Flags(tensor=4, depth=2), 16).plan
    assert (plan.depth, plan.width, plan.tensor, plan.schedule) == (2, 2, 4, "chimera")


def test_one_rank_a_worker_has_no_layout():
    job = resolve(GPT2Flags(), 1)
    assert (job.plan.tensor, job.factors) == (1, {})


def test_the_layout_is_described():
    text = resolve(GPT2Flags(tensor=2, layout="megatron"), 2).describe()
    assert "layout: megatron, 2 ranks a worker (rows.columns.contraction: c_attn 1.2.1, attn.c_proj 1.1.2" in text


@pytest.mark.parametrize(
    ("given", "ranks", "message"),
    [
        ({"tensor": 2}, 3, r"--tensor does not divide the ranks \(--tensor 2, ranks: 3\)"),
        ({"layout": "data"}, 1, r"one rank splits nothing \(--layout data, --tensor 1\)"),
        ({"tensor": "auto", "layout": "data"}, 1, r"nothing \(--layout data, --tensor auto\); start more ranks"),
        (
            {"tensor": "auto", "layout": "data"},
            4,
            r"--layout data, --tensor auto\); add --plan auto, or give --tensor a",
        ),
        ({"tensor": 2, "layout": "rows"}, 2, "no layout: 'rows'"),
        ({"tensor": 8, "layout": "megatron"}, 8, r"more column shards than heads \(c_attn, shards: 8, heads: 4\)"),
        ({"tensor": 2, "layout": "data", "microbatch": 1}, 2, "more row shards than sequences in a microbatch"),
        ({"tensor": 2, "schedule": "pipedream_2bw"}, 2, "only a schedule with a flush is split over ranks"),
        ({"tensor": 2, "exact_sums": True}, 2, "--tensor 2 does not go with --exact-sums True yet"),
        ({"tensor": 2, "all_reduce": "measured"}, 2, "--tensor 2 does not go with --all-reduce measured yet"),
    ],
)
def test_what_does_not_go_with_a_team_is_refused(given, ranks, message):
    with pytest.raises(UsageError, match=message):
        resolve(GPT2Flags(**given), ranks)


def test_a_layout_may_be_a_file_that_shard_wrote(tmp_path):
    path = tmp_path / "layout.json"
    assert main(["shard", "--ranks=4", "--batch=32", "--layout=megatron_1d", f"--out={path}", "--json"]) == 0
    found = resolve(GPT2Flags(tensor=4, layout=str(path)), 4)
    assert found.factors == resolve(GPT2Flags(tensor=4, layout="megatron"), 4).factors
    assert found.plan.layout == "c_attn=1.4.1,attn.c_proj=1.1.4,c_fc=1.4.1,mlp.c_proj=1.1.4,wte=1.4.1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"strategy": [{"op": "c_fc", "factors": [4, 1, 1], "state": "zero4"}]}',
            "no state 'zero4'",
        ),
        (
            '{"strategy": [{"op": "c_fc", "factors": [1, 4, 1], "state": "none", "anew": true}]}',
            "input of c_fc is gathered anew .state: none., which is trained with zero3",
        ),
        ('{"strategy": [{"op": "fc", "factors": [1, 4, 1], "state": "none"}]}', "no layout: 'fc=1.4.1'"),
        ("[]", "is no layout .TypeError"),
        ('{"strategy": [{"op": "c_fc", "factors": [1, 4]}]}', "is no layout .TypeError"),
        ('{"strategy": [{"op": "c_fc", "factors": [1, 4.0, 1], "state": "none"}]}', "is no layout .TypeError"),
        (
            '{"strategy": [{"op": "c_fc", "factors": [[1, 1, 1], [1, 2, 1], [1, 2, 1]]}]}',
            "no layout .ValueError: 3 levels",
        ),
    ],
)
def test_a_file_that_is_no_layout_that_trains_is_refused(tmp_path, text, message):
    (tmp_path / "layout.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        resolve(GPT2Flags(tensor=4, layout=str(tmp_path / "layout.json")), 4)


def test_operators_that_a_file_leaves_out_are_searched(tmp_path):
    (tmp_path / "layout.json").write_text('{"strategy": [{"op": "c_fc", "factors": [1, 4, 1], "state": "none"}]}')
    config = resolve(GPT2Flags(tensor=4, layout=str(tmp_path / "layout.json")), 4).config
    assert config.layout == resolve(GPT2Flags(tensor=4, layout="c_fc=1.4.1"), 4).config.layout
    assert "c_fc=1.4.1" in config.layout and "c_attn=" in config.layout


def test_open_teams_leave_the_rule_s_arrangement_until_it_is_planned():
    config = GPT2Flags(tensor="auto")
    assert is_open(config) and resolve(config, 4).plan == resolve(GPT2Flags(), 4).plan
    model = planned_model_of(config)
    assert model.fixed == {"tensor": "auto"}
    assert planned_model_of(replace(config, compile=True)).fixed == {"tensor": "auto", "compile": True}
    team = Plan("gpipe", 1, 2, 8, 2, tensor=2)
    assert model.can_split(team) and replace(model, runs=True).can_split(team)
    exact = planned_model_of(replace(config, exact_sums=True))
    assert exact.can_split(team) and not replace(exact, runs=True).can_split(team), (
        "exact sums are not those of teams yet"
    )


def test_zero1_is_data_with_a_divided_update():
    config = GPT2Flags(tensor=4, layout="zero1")
    assert config.divides and not GPT2Flags(tensor=4, layout="data").divides
    plan, data = (resolve(each, 4).plan for each in (config, GPT2Flags(tensor=4, layout="data")))
    assert plan.layout == ",".join(f"{word}+zero1" for word in data.layout.split(","))
    assert replace(plan, layout="") == replace(data, layout="")


@pytest.mark.parametrize(("layout", "tensor"), [("data", 2), ("megatron", 4), (None, 1)])
def test_a_rank_of_a_divided_update_is_counted_with_its_share_of_the_moments(layout, tensor):
    """Of n numbers that R ranks hold in all, a rank keeps 2n/R of the moments; in float32."""
    job = resolve(GPT2Flags(tensor=tensor, layout=layout, width=3, depth=1, shard_optimizer=True), 3 * tensor)
    found = rank_workload(job.model, job.plan, job.sequence, WorkloadOptions(divided=True)).parameters
    whole = workload(job.model, replace(job.plan, tensor=1), job.sequence).parameters
    for one, every in zip(found, whole, strict=True):
        assert one.kept_bytes == ceil((8 * every.elements + 4 * every.tensors) / (3 * tensor))


@pytest.mark.parametrize(("layout", "columns"), [("zero3", 1), ("summa", 2)])
def test_a_rank_that_keeps_parts_of_the_weights_is_counted_with_them(layout, columns):
    job = resolve(GPT2Flags(tensor=4, layout=layout, depth=1, vocab=256), 4)
    held = rank_workload(job.model, job.plan, job.sequence, WorkloadOptions(divided=True)).parameters
    every = shapes(job.model)
    weights = sum(prod(shape) for name, shape in every.items() if len(shape) == 2 and "wpe" not in name)
    rest = sum(map(prod, every.values())) - weights
    assert sum(each.elements for each in held) == weights / 4 + rest / columns
    assert sum(each.kept_bytes for each in held) == ceil((8 * (weights + rest) + 4 * len(every)) / 4)


def test_a_rank_that_gathers_weights_for_a_step_is_counted_with_them():
    """Numbers of weights beside zero3's 4/T each: all of them, once."""
    jobs = [resolve(GPT2Flags(tensor=4, layout=layout, depth=1, vocab=256), 4) for layout in ("zero2", "zero3")]
    held, less = (rank_workload(job.model, job.plan, job.sequence) for job in jobs)
    job, _ = jobs
    assert held.parameters == less.parameters
    weights = sum(prod(shape) for name, shape in shapes(job.model).items() if len(shape) == 2 and "wpe" not in name)
    assert [stage.frozen_bytes for stage in held.stages] == [4 * weights]


def test_a_dry_run_prints_the_bytes_that_a_member_moves(capsys):
    """Of m tokens Megatron's block moves 4 (T-1)/T m C elements each way, and 2 numbers a token for both its norms."""
    sent = []
    for layers in (1, 2):
        assert train(f"--tensor 2 --layers {layers} --d-model 32 --heads 2 --batch 4 --seq 8 --dry-run".split()) == 0
        found = search(r"forward ([\d,]+) and backward ([\d,]+) a microbatch, update 0 a step", capsys.readouterr().out)
        sent.append([int(number.replace(",", "")) for number in found.groups()])
    tokens = 4 * 8
    assert [two - one for one, two in zip(*sent, strict=True)] == [4 * (4 * tokens * 32 // 2 + 2 * 2 * tokens)] * 2


def test_a_dry_run_refuses_the_checkpoint_of_another_model_as_a_run_does(tmp_path, capsys):
    small = "--layers 1 --d-model 32 --heads 2 --batch 4 --seq 8".split()
    saved = ["--checkpoint", str(tmp_path), "--resume", "auto"]
    assert train([*small, *saved, "--steps", "1", "--eval-windows", "1", "--data", __file__]) == 0
    capsys.readouterr()
    for more in ([], ["--dry-run"]):
        assert train([*saved, "--layers", "2", "--steps", "2", "--data", __file__, *more]) == 2
        assert "layers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("levels", "trained"),
    [
        ("2.1.1/1.2.1", True),
        ("1.1.2/1.2.1", True),
        ("2.1.1/2.1.1", True),
        ("1.2.1/2.1.1", False),
        ("1.2.1/1.1.2", False),
        ("1.1.2/2.1.1", False),
    ],
)
def test_two_levels_are_trained_if_the_ranks_of_a_node_are_those_that_were_priced(levels, trained, tmp_path):
    """Ranks 0 and 1 are a node, so they differ in what is cut inside of it, and in that alone."""
    nodes, inside = (tuple(map(int, level.split("."))) for level in levels.split("/"))
    factors = tuple(a * b for a, b in zip(nodes, inside, strict=True))
    mesh = SplitMatmul(factors, (4,), (4,)).mesh
    differing = tuple(mesh.coordinate(1, axis) + 1 for axis in ("rows", "columns", "contraction"))
    assert trained == (differing == inside)
    file, row = tmp_path / "layout.json", {"factors": [nodes, inside], "state": "none"}
    every = ("c_attn", "attn.c_proj", "c_fc", "mlp.c_proj", "wte")
    file.write_text(json.dumps({"strategy": [{"op": name, **row} for name in every]}))
    if trained:
        assert set(factors_of(str(file), 4).values()) == {factors}
    else:
        with pytest.raises(UsageError, match="is not trained: nodes cut rows first"):
            factors_of(str(file), 4)
