"""`--layout` where it leaves factors open: the best of all layouts that can be trained, and what files of plans say."""

import json
import math
from dataclasses import replace
from itertools import product

import pytest

from apps.common.lm.sharded.layouts import OPERATORS, layout_text, states_of
from apps.gpt2.config import GPT2Flags
from apps.gpt2.job import resolve
from apps.gpt2.planning.model_to_plan import planned_model_of
from apps.gpt2.planning.open_layout import LINKS, memory_of_a_rank
from apps.gpt2.planning.team_costs import stage_moves, team_chain
from pipelined.__main__ import main
from pipelined.errors import UsageError
from pipelined.planner.memory_limit import share_of_memory
from pipelined.sharding.search.matmul import factorizations
from pipelined.simulation import Machine

SIZES = {"tensor": 2, "layers": 2, "d_model": 64, "heads": 4, "batch": 8, "microbatches": 2, "seq": 32}


@pytest.mark.parametrize(
    ("layout", "kept"),
    [("auto", {}), ("c_fc=1.2.1", {"c_fc": "1.2.1"}), ("wte=1.1.2,c_attn=2.1.1", {"wte": "1.1.2", "c_attn": "2.1.1"})],
)
def test_what_is_open_becomes_the_layout_that_moves_for_the_shortest_time(layout, kept):
    """Of all 3 ** 5 layouts of 2 ranks, each priced by itself."""
    job = resolve(GPT2Flags(**SIZES, layout=layout), 2)
    plan, model = job.plan, job.model
    team = team_chain(model, 2, plan.rows, 32, Machine(LINKS), itemsize=4)
    names = [op.name for op in team.chain.operators]

    def seconds(factors):
        (moves,) = stage_moves(model, plan, 32, team.costs(factors))
        return plan.microbatches * (moves.forward + moves.backward) + moves.update

    options = [[f for f in factorizations(2) if kept.get(name) in (None, ".".join(map(str, f)))] for name in names]
    every = list(product(*options))
    chosen = tuple(job.factors.values())
    assert chosen in every
    assert seconds(chosen) == pytest.approx(min(map(seconds, every)), rel=1e-12)


def test_the_fastest_layout_that_fits_the_memory_is_chosen(monkeypatch):
    """Of all 3 ** 5 layouts of 2 ranks, under several limits; where none fits, the lightest."""
    limit = math.inf
    monkeypatch.setattr(f"{resolve.__module__}.memory_of_a_rank", lambda ranks: limit)
    job = resolve(GPT2Flags(**SIZES), 2)
    plan, team = job.plan, team_chain(job.model, 2, job.plan.rows, 32, Machine(LINKS), itemsize=4)
    every = {}
    for factors in product(factorizations(2), repeat=5):
        (moves,) = stage_moves(job.model, plan, 32, team.costs(factors))
        text = layout_text(dict(zip(OPERATORS, factors, strict=True)), states_of("data"))
        memory = replace(job, plan=replace(plan, layout=text)).planned_memory(0)
        every[text] = plan.microbatches * (moves.forward + moves.backward) + moves.update, memory
    sizes = sorted({memory for _, memory in every.values()})
    assert len(sizes) > 10
    chosen = set()
    for limit in (sizes[-1], *sizes[:: len(sizes) // 10]):
        layout = resolve(GPT2Flags(**SIZES), 2).plan.layout
        fastest = min(seconds for seconds, memory in every.values() if memory <= limit)
        seconds, memory = every[layout]
        assert memory <= limit
        assert seconds == pytest.approx(fastest, rel=1e-12)
        chosen.add(layout)
    assert len(chosen) > 2, "the limits matter"
    limit = sizes[0] - 1
    assert every[resolve(GPT2Flags(**SIZES), 2).plan.layout][1] == sizes[0]


def test_a_layout_that_is_left_open_is_auto_and_has_no_limit_of_heads():
    assert resolve(GPT2Flags(**SIZES), 2).plan == resolve(GPT2Flags(**SIZES, layout="auto"), 2).plan
    wide = SIZES | {"tensor": 8, "microbatches": 1}
    assert resolve(GPT2Flags(**wide), 8).factors["c_attn"].rows > 1, "8 ranks share 4 heads"


def test_the_memory_is_that_of_a_gpu_where_there_is_one(monkeypatch):
    """Torch is loaded for it only where a driver's file is there."""
    monkeypatch.setattr("pipelined.measurement.measure.gpu_bytes", lambda: [3 << 30, 3 << 30])
    monkeypatch.setattr("os.path.exists", lambda path: path == "/dev/nvidiactl")
    assert memory_of_a_rank(4) == (3 << 30) / 2
    monkeypatch.setattr("os.path.exists", lambda path: False)
    assert memory_of_a_rank(4) == share_of_memory(4)


def test_the_papers_is_that_of_the_search_in_its_space(capsys):
    flags = ["--layers=2", "--d-model=64", "--heads=4", "--seq=32", "--batch=8"]
    assert main(["shard", "--ranks=2", "--microbatches=2", "--layout=paper", "--json", *flags]) == 0
    found = {row["op"]: tuple(row["factors"]) for row in json.loads(capsys.readouterr().out)["strategy"]}
    assert resolve(GPT2Flags(**SIZES, layout="paper"), 2).factors == found


def test_the_factors_that_were_found_are_those_of_the_configuration():
    job = resolve(GPT2Flags(**SIZES, layout="auto"), 2)
    assert job.config.layout == job.plan.layout, "a run that is resumed takes what it had"
    assert planned_model_of(GPT2Flags(**SIZES, layout="auto")).config.layout is None, "a planner searches it"


def test_a_plan_file_has_a_layout_if_it_has_teams(tmp_path):
    flags = ["--layers=2", "--d-model=64", "--heads=4", "--seq=32", "--batch=8", "--costs=flops=1e9", "--ranks=2"]
    for tensor in (2, 1):
        path = tmp_path / f"{tensor}.json"
        main(["plan", *flags, f"--tensor={tensor}", f"--out={path}"])
        split = json.loads(path.read_text())["plan"].get("layout")
        given = GPT2Flags(**SIZES, layout=str(path))
        if tensor == 2:
            assert resolve(given, 2).plan.layout == split
            continue
        with pytest.raises(UsageError, match="is a plan without teams, and has no layout"):
            resolve(given, 2)


def test_what_no_factors_fit_is_refused():
    with pytest.raises(UsageError, match=r"no factors give each of 3 ranks .* sequences: 1, heads: 2\)"):
        resolve(GPT2Flags(tensor=3, layers=1, d_model=32, heads=2, batch=1, seq=8, layout="auto"), 3)
