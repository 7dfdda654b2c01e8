"""GPT-2 as published has the defaults of nanoGPT; a flag, a file of tokens or a checkpoint wins over them."""

import json
from functools import partial

import pytest

from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.common.run import resume
from apps.gpt2.__main__ import main
from apps.gpt2.config import parse
from apps.gpt2.job import resolve, sequence_of
from pipelined.state.checkpoints import checkpoint
from pipelined.state.checkpoints.checkpoint import Meta

parse_resumed = partial(resume.parse_resumed, parse=parse)

NANOGPT = {"lr": 6e-4, "beta1": 0.9, "beta2": 0.95, "tokenizer": "gpt2"}
"""Of its train.py at 3adf61e1, `block_size = 1024` beside; its data is prepared with GPT-2's tokenizer."""


def numbers(flags):
    return {name: getattr(parse(flags.split()), name) for name in NANOGPT}


@pytest.mark.parametrize("preset", ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"])
def test_a_published_model_has_the_defaults_of_nanogpt(preset):
    assert numbers(f"--preset {preset}") == NANOGPT
    assert resolve(parse(["--preset", preset]), 1).sequence == 1024


@pytest.mark.parametrize("flags", ["", "--preset tiny", "--preset chimera", "--preset autoddl-8"])
def test_other_models_keep_theirs(flags):
    assert numbers(flags) == NANOGPT | {"lr": 4e-3, "tokenizer": None}
    assert resolve(parse(flags.split()), 1).sequence == 64


def test_a_flag_wins_even_where_it_is_the_default_of_another_model():
    found = parse("--preset gpt2 --lr 4e-3 --tokenizer bytes --seq 64 --beta2 0.99".split())
    assert (found.lr, found.tokenizer, found.beta2, resolve(found, 1).sequence) == (4e-3, "bytes", 0.99, 64)


def test_a_vocabulary_too_small_for_the_tokenizer_has_bytes_as_ever():
    assert parse(["--preset", "gpt2", "--vocab", "300"]).tokenizer is None
    assert parse(["--preset", "gpt2", "--vocab", "50304"]).tokenizer == "gpt2"


def test_tokens_in_files_and_a_directory_to_start_from_have_their_own_tokenizer(tmp_path):
    (tmp_path / "index.json").write_text("{}")
    for flags in (f"--preset gpt2 --data {tmp_path}", "--preset gpt2 --data a.bin", f"--init {tmp_path}"):
        assert numbers(flags) == NANOGPT | {"tokenizer": None}


def test_the_sequence_of_a_model_to_start_from_is_as_long_as_it_has_positions(tmp_path):
    short, long = (ModelConfig(1, 8, 1, 256, positions) for positions in (100, 4096))
    config = parse(["--init", str(tmp_path)])
    assert (sequence_of(config, short), sequence_of(config, long)) == (100, 1024)


def test_a_resumed_run_of_an_earlier_release_keeps_its_rate_and_its_bytes(tmp_path):
    saved = {"preset": "gpt2", "layers": 2, "lr": 4e-3, "seq": 64, "tokenizer": None}
    checkpoint.commit(tmp_path, Meta(3, {}, saved), [checkpoint.write_shard(tmp_path, 3, 0, 1, {})], 1)
    found = parse_resumed(["--checkpoint", str(tmp_path), "--resume", "auto"])
    assert (found.preset, found.lr, found.seq, found.tokenizer) == ("gpt2", 4e-3, 64, None)


@pytest.mark.parametrize("schedule", ["chimera", "swarm"])
def test_the_first_lines_say_what_was_taken_and_print_config_has_it_as_flags(schedule, capsys):
    flags = f"--preset gpt2 --schedule {schedule} --depth 2 --lr 1e-3".split()
    assert main([*flags, "--dry-run"]) == 0
    line = "trained with lr 0.001, betas 0.9 and 0.95, sequences of 1024 tokens, tokenizer gpt2: GPT-2's, where nothing"
    assert line in capsys.readouterr().out
    assert main([*flags, "--print-config"]) == 0
    assert {"seq": 1024, "tokenizer": "gpt2", "lr": 1e-3}.items() <= json.loads(capsys.readouterr().out)[
        "resolved"
    ].items()
    assert main(["--dry-run"]) == 0 and "trained with" not in capsys.readouterr().out
