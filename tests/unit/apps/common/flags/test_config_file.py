"""Flags from a file: those of a command line with the same words, which the command line may override."""

import json
from functools import partial

import pytest

from apps.common.rows.program import main as rows
from apps.common.run import resume
from apps.gpt2.__main__ import main as gpt2
from apps.gpt2.config import GPT2Flags, parse
from apps.llama.__main__ import LlamaFlags as Llama
from apps.resnet.__main__ import ResNetFlags as ResNet
from apps.vgg.config import VGGFlags as VGG
from pipelined.errors import UsageError
from pipelined.state.checkpoints import checkpoint
from pipelined.state.checkpoints.checkpoint import Meta

parse_resumed = partial(resume.parse_resumed, parse=parse)

TOML = """
depth = 4
lr = 6e-4
weight-decay = 0.2
recompute = true
prompt = "-x y"
data = ["a b", "c"]
schedule = "gpipe"
chunks = 2
"""
WORDS = ["--depth", "4", "--lr", "6e-4", "--weight-decay", "0.2", "--recompute", "--prompt=-x y", "--data", "a b", "c"]
WORDS += ["--schedule", "gpipe", "--chunks", "2"]


@pytest.fixture
def file(tmp_path):
    """Writes a file of flags; returns the words that name it."""

    def write(text: str, name: str = "run.toml") -> list[str]:
        (tmp_path / name).write_text(text)
        return ["--config", str(tmp_path / name)]

    return write


def without_file(config: GPT2Flags) -> dict[str, object]:
    return {**vars(config), "config": None}


def test_a_file_has_the_effect_of_its_flags(file):
    assert without_file(parse(file(TOML))) == vars(parse(WORDS))


def test_a_flag_has_its_second_name_in_a_file_too(file):
    assert parse(file("stages = 4")).depth == 4
    assert parse([*file("stages = 4"), "--depth", "2"]).depth == 2


def test_flags_of_the_command_line_win_over_the_file_wherever_they_stand(file):
    again = ["--depth", "2", "--no-recompute", "--data", "d", "--schedule", "one_f_one_b"]
    assert without_file(parse([*again, *file(TOML)])) == vars(parse([*WORDS, *again]))


def test_recompute_has_a_value_on_the_command_line_and_in_a_file(file):
    given = parse(["--recompute", "attention", "--depth", "2"])
    assert (given.recompute, given.recompute_attention) == (False, True)
    assert parse(["--recompute=attention", "--depth", "2"]) == parse(["--depth", "2", "--recompute-attention"]) == given
    assert without_file(parse(file('recompute = "attention"\ndepth = 2'))) == vars(given)
    assert parse(["--recompute", "--depth", "2"]).recompute
    with pytest.raises(UsageError):
        parse(["--recompute", "scores"])


@pytest.mark.parametrize(
    ("program", "flags"),
    [
        (gpt2, "--schedule pipedream --depth 2 --lr 1e-3 --data LICENSE README.md --recompute"),
        (gpt2, "--schedule swarm --stages 2 --width 2 --microbatches 4"),
        (gpt2, "--schedule ravnest --clusters 2 --batch 24 --microbatches 6 --ahead 3"),
        (partial(rows, "apps.vgg", VGG()), "--depth 2 --tensor 2"),
        (partial(rows, "apps.llama", Llama()), "--depth 2 --seq 32 --layers 2"),
        (partial(rows, "apps.resnet", ResNet()), "--depth 2"),
    ],
)
def test_what_print_config_writes_gives_the_same_configuration_again(file, capsys, program, flags):
    assert program([*flags.split(), "--print-config"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert program([*file(json.dumps(written), "run.json"), "--print-config"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["flags"] == written["flags"]
    assert again["resolved"] | {"config": None} == written["resolved"]


def test_a_resumed_run_takes_from_its_checkpoint_what_neither_file_nor_command_line_says(file, tmp_path):
    record = checkpoint.write_shard(tmp_path / "saved", 7, 0, 1, {})
    saved = {"lr": 0.5, "batch": 6, "seq": 9, "steps": 70}
    checkpoint.commit(tmp_path / "saved", Meta(7, {}, saved), [record], keep=1)
    resumed = ["--checkpoint", str(tmp_path / "saved"), "--resume", "auto"]
    found = parse_resumed([*file("batch = 8\nseq = 10"), *resumed, "--seq", "11"])
    assert (found.lr, found.batch, found.seq, found.steps) == (0.5, 8, 11, 70)


@pytest.mark.parametrize(
    ("name", "text", "fact"),
    [
        ("a.toml", "learning_rate = 1", r"a\.toml has a key that is no flag .'learning_rate'.; did you mean lr\?"),
        ("a.toml", "dept = 1", r"did you mean depth\?"),
        ("a.toml", "zzzzzz = 1", "leave it out; --help lists the flags"),
        ("a.toml", "[model]\nlayers = 1", r"no value of a flag at 'model' .dict.; write keys"),
        ("a.toml", '{"depth": 1}', "is not TOML"),
        ("a.json", "depth = 1", "is not JSON"),
        ("a.json", "[]", "holds no keys"),
        (
            "a.toml",
            'config = "b.toml"',
            r"names another file of flags .config: b\.toml.; write all flags into one",
        ),
    ],
)
def test_a_file_that_holds_no_flags_is_refused_with_its_fault(file, name, text, fact):
    with pytest.raises(UsageError, match=fact):
        parse(file(text, name))


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(UsageError, match=r"cannot read absent\.toml .No such file or directory."):
        parse(["--config", "absent.toml"])


@pytest.mark.parametrize(("given", "ours"), [("--learning-rate=3", "--lr"), ("--batch_size", "--batch")])
def test_a_flag_that_other_projects_have_is_answered_with_ours(given, ours):
    with pytest.raises(UsageError, match=rf"no flag is called {given.split('=')[0]}; did you mean {ours}\?"):
        parse([given, "3"])
