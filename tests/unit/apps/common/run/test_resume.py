"""A run that goes on takes what its flags leave out from the checkpoint, and refuses other data unless it is meant."""

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from apps.bert.__main__ import BertFlags as Bert
from apps.common.flags.run_flags import parse_flags, start_of
from apps.common.lm.data.text import read_text, require_text
from apps.common.rows.job import resolve as resolve_row
from apps.common.run import resume
from apps.common.run.resume import agree_on_flags
from apps.gpt2.checks import check_continued
from apps.gpt2.config import parse
from apps.gpt2.job import resolve
from apps.llama.__main__ import LlamaFlags as Llama
from apps.resnet.__main__ import ResNetFlags as ResNet
from apps.vgg.config import VGGFlags as VGG
from pipelined.errors import UsageError
from pipelined.state.checkpoints import checkpoint
from pipelined.state.checkpoints.checkpoint import Meta
from transports.local import world

parse_resumed = partial(resume.parse_resumed, parse=parse)

SAID = (
    "--preset tiny --layers 2 --d-model 32 --heads 2 --vocab 300 --seq 16 --microbatch 2 --microbatches 3 --depth 2 "
    "--data a b --tokenizer bpe:300 --lr 1e-3 --seed 5 --steps 40 --dtype float64 --dropout 0.3 --eval-every 7"
).split()
TEXT = {"data": "12", "tokenizer": "34"}


def saved(place, flags, changed=None):
    """A checkpoint, without tensors, of a run that was started with these flags; the flags that go on from it."""
    job = resolve(parse(flags), 2)
    told = {**job.to_dict(), "text": TEXT, **(changed or {})}
    checkpoint.commit(place, Meta(3, job.model.identity(), told), [checkpoint.write_shard(place, 3, 0, 1, {})], 1)
    return ["--checkpoint", str(place), "--resume", "auto"]


def test_what_is_not_given_is_as_it_was_saved(tmp_path):
    before, after = parse(SAID), parse_resumed(saved(tmp_path, SAID))
    names = "preset layers d_model heads vocab seq data tokenizer lr seed steps dtype".split()
    assert [getattr(after, name) for name in names] == [getattr(before, name) for name in names]
    assert (after.dropout, after.batch, after.depth, after.eval_every) == (0.3, 6, None, 0)
    assert resolve(after, 2).model == resolve(before, 2).model


def test_a_checkpoint_that_is_named_says_the_same_as_the_latest(tmp_path):
    flags = saved(tmp_path, SAID)
    named = parse_resumed(["--resume", str(start_of(parse(flags)))])
    assert replace(named, resume=None) == replace(parse_resumed(flags), resume=None, checkpoint=None)


def test_what_is_given_wins_even_where_it_is_the_default(tmp_path):
    flags = saved(tmp_path, SAID)
    after = parse_resumed([*flags, *"--seed 0 --lr 4e-3 --data c --dtype float32 --steps 600".split()])
    assert (after.seed, after.lr, after.data, after.dtype, after.steps) == (0, 4e-3, (Path("c"),), "float32", 600)


def test_a_clip_that_the_schedule_chose_is_not_taken_and_one_that_was_given_is(tmp_path):
    assert parse_resumed(saved(tmp_path / "open", SAID)).clip is None
    assert parse_resumed(saved(tmp_path / "given", [*SAID, "--clip", "0.5"])).clip == 0.5


def test_a_constant_rate_takes_no_last_one_from_the_checkpoint(tmp_path):
    flags = saved(tmp_path, [*SAID, "--min-lr", "1e-4"])
    assert parse_resumed(flags).min_lr == 1e-4
    assert parse_resumed([*flags, "--lr-schedule", "constant"]).min_lr is None


def test_another_preset_keeps_its_own_sizes_so_that_the_model_is_refused(tmp_path):
    assert resolve(parse_resumed([*saved(tmp_path, SAID), "--preset", "gpt2"]), 2).model.layers == 12


@pytest.mark.parametrize(
    ("flags", "batch"), [("--microbatch 1", 6), ("--microbatch 1 --microbatches 4", None), ("--batch 12", 12)]
)
def test_the_batch_is_as_saved_unless_the_flags_say_it(tmp_path, flags, batch):
    assert parse_resumed([*saved(tmp_path, SAID), *flags.split()]).batch == batch


@pytest.mark.parametrize(
    "damage",
    [
        {"layers": "2"},
        {"lr": True},
        {"data": [1]},
        {"data": "a"},
        {"dtype": "int8"},
        {"lr_schedule": "up"},
        {"init": 3},
        {"left_open": 5},
    ],
    ids=str,
)
def test_a_configuration_that_no_run_wrote_is_refused_with_the_field(tmp_path, damage):
    with pytest.raises(UsageError, match=rf"is damaged \({next(iter(damage))}: .*; resume from another checkpoint"):
        parse_resumed(saved(tmp_path, SAID, damage))


def test_without_a_readable_checkpoint_the_flags_stand_alone(tmp_path):
    flags = [*SAID, *saved(tmp_path, SAID)]
    (checkpoint.latest(tmp_path) / "manifest.json").write_text("{")
    assert parse_resumed(flags) == parse(flags)
    assert parse_resumed(SAID) == parse(SAID)


@pytest.mark.parametrize("name", TEXT)
def test_other_data_is_refused_with_both_digests_unless_it_is_meant(tmp_path, name):
    path = start_of(parse_resumed(saved(tmp_path, SAID)))
    require_text(path, TEXT, False)
    with pytest.raises(UsageError, match=rf"on other data \({name}: {TEXT[name]} saved, 56 here\); .*--new-data"):
        require_text(path, {**TEXT, name: "56"}, False)
    require_text(path, {**TEXT, name: "56"}, True)


def test_a_checkpoint_without_digests_is_gone_on_with(tmp_path):
    require_text(start_of(parse_resumed(saved(tmp_path, SAID, {"text": None}))), TEXT, False)


async def test_a_rank_that_read_other_numbers_is_named():
    first = resolve(parse(SAID), 2).to_dict()

    ranks = zip(world(2), (first, {**first, "layers": 9}), strict=True)
    agreed, refused = await asyncio.gather(*(agree_on_flags(*rank) for rank in ranks), return_exceptions=True)
    assert agreed is None
    assert "other flags than those of rank 0 (layers: 9 here, 2 on rank 0)" in str(refused)


def test_a_text_says_what_is_trained_on_and_both_digests_follow_what_they_are_of(tmp_path):
    (tmp_path / "a").write_text("to be or not to be\n" * 30)
    (tmp_path / "b").write_text("to be or not to do\n" * 30)
    three = ("a", "bytes"), ("b", "bytes"), ("a", "bpe:260")
    a, other_text, other_tokenizer = (read_text([tmp_path / name], tokenizer) for name, tokenizer in three)
    assert a.digests["data"] == other_tokenizer.digests["data"] != other_text.digests["data"]
    assert a.digests["tokenizer"] == other_text.digests["tokenizer"] != other_tokenizer.digests["tokenizer"]
    digest, tokenizer = a.digests["data"][:12], a.digests["tokenizer"][:12]
    assert a.describe(1083, 3, 8) == (
        f"data: {tmp_path / 'a'}, digest {digest}, 532 tokens, 2.04 epochs in 3 steps, "
        "38 to validate, 4 windows scored; "
        f"tokenizer: bytes (256 symbols, digest {tokenizer})"
    )


def test_a_run_is_not_saved_among_the_checkpoints_of_another_than_it_resumes(tmp_path):
    own, foreign = tmp_path / "own", tmp_path / "foreign"
    flags = saved(own, SAID)
    saved(foreign, SAID)
    check_continued(resolve(parse_resumed(flags), 2), own)
    check_continued(resolve(parse_resumed(["--resume", str(own / "step-00000003")]), 2), own)
    elsewhere = resolve(parse_resumed(["--resume", str(own), "--checkpoint", str(foreign)]), 2)
    with pytest.raises(UsageError, match=r"foreign holds checkpoints of another run than .*own, which is continued"):
        check_continued(elsewhere, foreign)
    check_continued(elsewhere, tmp_path / "empty")


PROGRAMS = {
    "llama": (Llama(), "--layers 2 --vocab 300 --seq 16 --data a b --tokenizer bpe:300 --eval-windows 3 --min-lr 1e-4"),
    "bert": (Bert(), "--preset bert-base --seq 16 --dropout 0.3 --lr-schedule wsd --beta2 0.9"),
    "resnet": (ResNet(), "--preset resnet34 --side 24 --dtype bfloat16 --eps 1e-6"),
    "vgg": (VGG(), "--dropout 0.3 --seed 7 --warmup 5"),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_row_of_layers_takes_what_is_not_given_from_its_checkpoint_as_gpt2_does(program, tmp_path):
    default, said = PROGRAMS[program]

    def parsed(words, over=None):
        return parse_flags(words, over or default, program)

    before = parsed([*said.split(), *"--batch 6 --microbatch 2 --depth 2 --steps 40 --lr 1e-3 --eval-every 7".split()])
    job = resolve_row(before, None)
    told = {**job.to_dict(), "plan": "chimera"}  # the key in which the public API keeps the schedule
    checkpoint.commit(tmp_path, Meta(3, {}, told), [checkpoint.write_shard(tmp_path, 3, 0, 1, {})], 1)
    after = resume.parse_resumed(["--checkpoint", str(tmp_path), "--resume", "auto"], parsed)
    assert resolve_row(after, None).task.describe() == job.task.describe()
    changed = {name for name, value in vars(after).items() if value != vars(before)[name]}
    resolved = {name for name in changed if vars(before)[name] is None}  # left open, and recorded as it came out
    assert changed - resolved == {"checkpoint", "resume", "microbatch", "depth", "eval_every"} - resolved
    assert (after.batch, after.steps, after.lr, after.clip) == (6, 40, 1e-3, None)
