"""`python -m apps.ravnest plan`: its text, JSON and picture, its exit codes, and that it needs no torch."""

import json
import sys

import pytest

from apps.common.lm.models.gpt2_presets import PRESETS, parameters
from apps.ravnest.__main__ import main, parse
from apps.ravnest.plan import layer_sizes
from tests.launching import launched

POOL = "name,ram,bandwidth,flops\na,24M,200mbit,40G\nb,16M,100mbit,20G\nc,32M,200mbit,40G\nd,16M,200mbit,80G\n"
KEYS = ["clusters", "spread_s", "waiting", "method", "layers", "rings", "round_bytes"]


@pytest.fixture
def pool(tmp_path):
    path = tmp_path / "pool.csv"
    path.write_text(POOL)
    return str(path)


def test_json_has_the_promised_keys(pool, capsys):
    assert main(["plan", "--pool", pool, "--clusters", "2", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert list(plan) == KEYS
    for cluster in plan["clusters"]:
        assert list(cluster) == ["places", "transfer_s", "microbatch_s", "share"]
        ends = [place["layers"] for place in cluster["places"]]
        assert [0, *(end for _, end in ends)] == [*(first for first, _ in ends), len(plan["layers"])]
        for place in cluster["places"]:
            assert list(place) == ["node", "layers", "bytes", "ram", "alive", "backup"]
            assert place["bytes"] <= place["ram"]
    assert list(plan["layers"][0]) == ["parameters", "activation_bytes", "seconds"]
    assert list(plan["rings"][0]) == ["low", "high", "nodes"]
    whole = sum(layer["parameters"] for layer in plan["layers"])
    assert plan["rings"][-1]["high"] == whole and sum(plan["round_bytes"].values()) == 2 * 4 * whole


def test_text_names_every_node_and_ring(pool, capsys):
    assert main(["plan", "--pool", pool, "--clusters", "2", "--objective", "transfer"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("clusters: 2, by transfer (exhaustive)") and text.count("alive") == 4 and "rings: " in text


def test_bytes_group_without_cutting(pool, capsys):
    assert main(["plan", "--pool", pool, "--bytes", "30M", "--json", "--method", "genetic"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert list(plan) == KEYS and plan["layers"] == plan["rings"] == [] and plan["method"] == "genetic"
    assert {place["layers"] for cluster in plan["clusters"] for place in cluster["places"]} == {None}


def test_a_picture_is_drawn(pool, tmp_path):
    picture = tmp_path / "plan.png"
    assert main(["plan", "--pool", pool, "--clusters", "2", "--png", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_picture_without_matplotlib_names_the_extra(pool, tmp_path, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "apps.ravnest.drawing", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    assert main(["plan", "--pool", pool, "--clusters", "2", "--png", str(tmp_path / "plan.png")]) == 2
    assert "is not installed; pip install 'pipelined[draw]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        ("--clusters 9", "the pool cannot hold the model 9 times"),
        ("--clusters 0", "--clusters must be at least 1"),
        ("--preset huge", "no preset is called 'huge'"),
        ("--preset gpt2", "is larger than every node"),
        ("--seq 1000", "a sequence does not fit"),
        ("--bytes 13X", "--bytes '13X' is no quantity"),
        ("--bytes 0", "--bytes must be at least 1"),
        ("--bytes 1M --png plan.png", "--png draws cuts"),
        ("--bytes 1M --objective rate", "the objective rate needs every node's speed"),
    ],
)
def test_impossible_flags_are_refused_in_one_line_with_exit_code_2(pool, capsys, flags, fact):
    assert main(["plan", "--pool", pool, *flags.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("python -m apps.ravnest: error: ") and fact in line


def test_neither_torch_nor_matplotlib_nor_a_transport_is_imported(pool):
    code = "import sys; from apps.ravnest.__main__ import main; assert main(sys.argv[1:]) == 0\n"
    code += "heavy = {'torch', 'matplotlib', 'mpi4py'} & {*sys.modules}; assert not heavy, heavy"
    done = launched([sys.executable, "-c", code, "plan", "--pool", pool], timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_layers_have_the_parameters_of_the_model():
    model = parse(["plan", "--pool", "pool.csv", "--preset", "gpt2", "--seq", "8"]).find_model()
    sizes = list(layer_sizes(model, 2, 8))
    assert len(sizes) == 14 and sum(size.parameters for size in sizes) == parameters(PRESETS["gpt2"]) + 768 * 50257
    assert sizes[1].input_bytes == 4 * 2 * 8 * 768
