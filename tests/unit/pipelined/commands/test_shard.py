"""`python -m pipelined shard`: what it prints, what it writes, and how it refuses what cannot be."""

import json
import subprocess
import sys

import pytest

from pipelined.__main__ import main
from pipelined.sharding.search.layouts import BASELINES

BLOCK = ["--chain", "1048576:8192-24576/8192-8192-32768-8192", "--closed", "--links", "beta=1e-9"]
GPT2 = ["--layers", "6", "--d-model", "64", "--heads", "8", "--batch", "32"]
MI = 2**20


def shard(capsys, *flags):
    assert main(["shard", *flags, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *flags):
    assert main(["shard", *flags]) == 2
    return capsys.readouterr().err


def test_json_has_the_strategy_its_price_and_the_baselines(capsys):
    result = shard(capsys, "--ranks", "64", *BLOCK, "--replicas", "4")
    assert list(result) == ["ranks", "space", "evaluated", "strategy", "elements", "seconds", "memory", "baselines"]
    assert (result["ranks"], result["space"]) == (64, 18**4)
    assert [row["factors"] for row in result["strategy"]] == [[4, 8, 2], [4, 4, 4], [4, 8, 2], [4, 2, 8]]
    assert list(result["strategy"][0]) == ["op", "factors", "state", "forward", "backward", "update"]
    assert sum(result["elements"].values()) == 9800 * MI
    for phase in ("forward", "backward", "update"):
        assert sum(row[phase] for row in result["strategy"]) == result["elements"][phase]
    assert result["seconds"] == pytest.approx(4e-9 * 9800 * MI)
    assert result["memory"] == 768 * MI
    assert tuple(result["baselines"]) == BASELINES
    for priced in result["baselines"].values():
        assert list(priced) == ["strategy", "elements", "seconds", "memory"]


def test_the_full_space_splits_state_under_a_limit(capsys):
    limits = ["--memory-limit", "768M", "--space", "full", "--microbatches", "16"]
    result = shard(capsys, "--ranks", "64", *BLOCK, *limits)
    assert sum(result["elements"].values()) <= 6416 * MI and result["memory"] <= 768 * MI
    assert {row["state"] for row in result["strategy"]} > {"zero2"}


def test_nodes_have_factors_of_their_own(capsys):
    result = shard(capsys, "--ranks", "16", *BLOCK, "--node", "8", "--far", "alpha=1e-3,beta=1e-8", "--replicas", "4")
    for row in result["strategy"]:
        over_nodes, inside = row["factors"]
        assert (over_nodes[0] * over_nodes[1] * over_nodes[2], inside[0] * inside[1] * inside[2]) == (2, 8)
    assert shard(capsys, "--ranks", "8", *BLOCK, "--node", "8")["strategy"][0]["factors"] == [8, 1, 1]


def test_the_table_has_a_line_for_every_layer_and_baseline(capsys):
    assert main(["shard", "--ranks", "4", *GPT2, "--memory-limit", "30M", "--space", "full"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("4 ranks, 1 microbatches a step: ")
    names = [line.split()[0] for line in lines if line[:1].strip()]
    assert [name for name in names if name in ("c_attn", "attn.c_proj", "c_fc", "mlp.c_proj", "wte")] == names[2:7]
    assert [name for name in names if name in BASELINES] == list(BASELINES)


@pytest.mark.parametrize("layout", ["data", "megatron", "zero2"])
def test_a_named_layout_is_priced_alone(capsys, layout):
    result = shard(capsys, "--ranks", "4", *GPT2, "--layout", layout)
    assert result["space"] == 1
    assert {name: result[name] for name in ("strategy", "elements", "memory")} == {
        name: result["baselines"][layout][name] for name in ("strategy", "elements", "memory")
    }


def test_a_layout_by_layer_holds_and_the_rest_is_searched(capsys):
    result = shard(capsys, "--ranks", "4", *GPT2, "--layout", "c_attn=1.2.2,mlp.c_proj=1.1.4")
    factors = {row["op"]: row["factors"] for row in result["strategy"]}
    assert (factors["c_attn"], factors["mlp.c_proj"]) == ([1, 2, 2], [1, 1, 4])


def test_what_is_written_is_read_as_a_layout(capsys, tmp_path):
    file, flags = tmp_path / "shards.json", ["--ranks", "4", *GPT2, "--space", "full"]
    result = shard(capsys, *flags, "--memory-limit", "30M", "--out", str(file))
    priced = shard(capsys, *flags, "--layout", str(file))
    assert {row["state"] for row in result["strategy"]} != {"none"}
    for name in ("strategy", "elements", "memory"):
        assert priced[name] == result[name]


def test_layouts_leave_an_untied_embedding_a_layout_of_its_own(capsys):
    result = shard(capsys, "--ranks", "4", "--preset", "chimera", "--batch", "8")
    assert [row["op"] for row in result["strategy"]][4:] == ["lm_head", "wte"]


def test_a_baseline_takes_the_width_that_fits(capsys):
    flags = ["--ranks", "64", *BLOCK, "--replicas", "4", "--space", "full"]
    widest, fitting = (
        shard(capsys, *flags, "--memory-limit", limit)["baselines"]["megatron"] for limit in ("768M", "767M")
    )
    assert [row["factors"] for row in widest["strategy"]] == [[4, 16, 1], [4, 1, 16]] * 2
    assert [row["factors"] for row in fitting["strategy"]] == [[2, 32, 1], [2, 1, 32]] * 2


REFUSED = {
    "attn.c_proj=1.2.4": (["--layout", "attn.c_proj=1.2.4"], "the factors come to 8, the ranks are 4"),
    "below 1": (["--layout", "c_attn=-1.-4.1"], "a factor is below 1 (the smallest: -4)"),
    "no factors": (["--layout", "c_attn=1.2"], "is not rows.columns.contraction"),
    "unknown layout": (["--layout", "megatrom"], "known: auto, paper, data, "),
    "unknown layer": (["--layout", "c_atn=1.2.2"], "known: c_attn, attn.c_proj, c_fc, mlp.c_proj, wte"),
    "twice": (["--layout", "c_attn=1.2.2,c_attn=1.4.1"], "c_attn is named twice"),
    "summa": (["--ranks", "8", "--layout", "summa"], "--layout summa does not go with 8 ranks"),
    "heads": (["--ranks", "16", "--layout", "c_attn=1.16.1"], "(sequences in a microbatch: 32, heads: 8)"),
    "memory": (["--memory-limit", "1M"], "bytes are missing"),
    "microbatches": (["--microbatches", "5"], "(batch: 32, microbatches: 5)"),
    "ranks": (["--ranks", "0"], "--ranks must be at least 1"),
    "many ranks": (["--ranks", "1000000000"], "--ranks is 1000000000 and can be 65536 at most"),
    "node": (["--node", "3"], "(ranks: 4, node: 3)"),
    "far": (["--node", "4", "--far", "beta=1e-8"], "--far has no use on one node (ranks: 4, node: 4)"),
    "far without nodes": (["--far", "beta=1e-8"], "--far has no use on one node (ranks: 4, node: 0)"),
    "closed": (["--closed"], "--closed goes with --chain"),
    "program": (["--program", "apps.nothing"], "--program apps.nothing cannot be imported"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_impossible_settings_are_refused(capsys, case):
    flags, message = REFUSED[case]
    assert message in refused(capsys, "--ranks", "4", *GPT2, *flags)


ROW = {"op": "c_attn", "factors": [1, 2, 2], "state": "none"}


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ([], "(its strategy is empty)"),
        ([ROW | {"factors": []}], "is no file that --out wrote"),
        ([ROW, ROW], "c_attn is named twice"),
    ],
)
def test_a_file_without_a_layout_is_refused(capsys, tmp_path, strategy, message):
    file = tmp_path / "shards.json"
    file.write_text(json.dumps({"strategy": strategy}))
    assert message in refused(capsys, "--ranks", "4", *GPT2, "--layout", str(file))


def test_deep_json_is_no_layout(capsys, tmp_path):
    file = tmp_path / "shards.json"
    file.write_text("[" * 100_000)
    assert "is no file that --out wrote" in refused(capsys, "--ranks", "4", *GPT2, "--layout", str(file))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--chain", "8192"], "is no chain"),
        (["--chain", "8:2-x"], "is no chain"),
        (["--chain", "0:2-4"], "a size of 0"),
        (["--chain", "8:2-4/6-8"], "more columns go on than there are (6 of 4)"),
        (["--chain", "8:2-4", "--closed"], "(last: 4 columns, first: 2)"),
        (["--chain", "8:2-4", "--preset", "gpt2"], "--preset is a program's flag"),
    ],
)
def test_text_that_is_no_chain_is_refused(capsys, flags, message):
    assert message in refused(capsys, "--ranks", "4", *flags)


def test_the_missing_bytes_are_reported(capsys):
    err = refused(capsys, "--ranks", "64", *BLOCK, "--layout", "data", "--memory-limit", "12287M")
    assert "(needed: 12,884,901,888 bytes, limit: 12,883,853,312): 1,048,576 bytes are missing" in err


def test_nothing_is_searched_with_torch():
    code = "import sys; from pipelined.__main__ import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    flags = ["shard", "--ranks", "4", *GPT2]
    assert subprocess.run([sys.executable, "-c", code, *flags], stdout=subprocess.DEVNULL, timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        ([], "take more ranks, --space full, or a higher --memory-limit"),
        (["--space", "full"], "take more ranks, or a higher --memory-limit"),
        (["--space", "full", "--layout", "data"], "take more ranks, another layout, or a higher --memory-limit"),
    ],
)
def test_what_does_not_fit_names_the_remedies_that_are_left(flags, remedy, capsys):
    assert main(["shard", "--ranks=4", "--batch=32", "--memory-limit=1M", *flags]) == 2
    assert capsys.readouterr().err.endswith(f"{remedy}\n")
