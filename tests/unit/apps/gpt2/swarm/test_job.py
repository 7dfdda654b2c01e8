"""What GPT-2's flags come to in a swarm: stages, ranks and batches, and what is refused."""

import json

import pytest

from apps.gpt2.config import GPT2Flags, parse
from apps.gpt2.job import resolve
from apps.gpt2.swarm.job import resolve_swarm
from pipelined.errors import UsageError


def job(words="", ranks=None):
    return resolve_swarm(parse(["--schedule", "swarm", *words.split()]), ranks)


@pytest.mark.parametrize(
    "words, started, stages, ranks",
    [
        ("", None, 3, 6),
        ("--depth 2", None, 2, 4),
        ("--stages 2 --width 3", None, 2, 6),
        ("", 4, 2, 4),
        ("", 1, 1, 1),
        ("", 3, 1, 3),
        ("", 64, 3, 64),
        ("--depth 3", 4, 3, 4),
        ("--width 1", 3, 3, 3),
        ("--depth 2 --width 2", 4, 2, 4),
    ],
)
def test_by_default_ranks_are_peers_and_stages_have_two_of_them(words, started, stages, ranks):
    resolved = job(words, started)
    assert (resolved.settings.stages, resolved.ranks) == (stages, ranks)
    assert {resolved.stage_of(rank) for rank in range(ranks)} == set(range(stages))
    assert resolved.trains(0)


@pytest.mark.parametrize(
    "words, batch, rows",
    [
        ("", 32, 4),
        ("--batch 6", 6, 3),
        ("--batch 7", 7, 1),
        ("--microbatch 8", 32, 8),
        ("--microbatches 4", 32, 4),
        ("--microbatch 3 --microbatches 4", 24, 3),
        ("--batch 16 --microbatches 4", 16, 2),
    ],
)
def test_a_step_is_the_same_as_of_another_schedule(words, batch, rows):
    settings = job(f"--depth 2 {words}", 4).settings
    assert (settings.batch, settings.microbatch) == (batch, rows)
    if "microbatch" in words:
        plan = resolve(parse([*"--schedule gpipe --depth 2".split(), *words.split()]), 4).plan
        assert plan.batch == batch


def test_what_is_trained_is_untied_unless_there_is_one_stage():
    loose, tied, published = job("--depth 2"), job("--depth 1"), job("--depth 2 --preset chimera --seq 8")
    assert (loose.model.tied, tied.model.tied, published.model.tied) == (False, True, False)
    assert (loose.settings.tied, tied.settings.tied) == (False, True)
    assert "untied" in loose.describe() and "32,768 parameters more" in loose.describe()
    assert "untied" not in tied.describe() + published.describe()


def test_flags_of_the_model_and_the_numbers_go_to_the_subject():
    words = (
        "--preset gpt2 --layers 2 --d-model 24 --heads 3 --vocab 300 --seq 9 --dropout 0.2 --lr 0.1 --warmup 3 --clip 0"
    )
    resolved = job(f"{words} --weight-decay 0 --seed 5 --steps 7 --eval-every 2 --dtype bfloat16 --compress blockwise8")
    settings = resolved.settings
    assert (settings.preset, settings.layers, settings.d_model, settings.heads, settings.seq) == ("gpt2", 2, 24, 3, 9)
    assert (settings.dropout, settings.lr, settings.warmup, settings.clip, settings.weight_decay) == (
        0.2,
        0.1,
        3,
        0.0,
        0.0,
    )
    assert (settings.seed, settings.steps, settings.eval_every) == (5, 7, 2)
    assert (settings.dtype, settings.compress, resolved.model.vocab) == ("bfloat16", "blockwise8", 300)
    assert json.loads(resolved.json())["resolved"]["vocab"] == 300


@pytest.mark.parametrize(
    "words, ranks, told",
    [
        ("--depth 4", 2, r"every stage needs a peer \(ranks: 2, stages: 4\); lower --depth or start more ranks"),
        ("--depth 2 --width 2", 5, "or start 4 ranks"),
        ("--depth 2 --microbatches 4", 5, "give --batch and --microbatch"),
        ("--depth 2 --microbatches 5", 4, r"--batch 32, --microbatches 5 x 2 copies\); give --batch a multiple of 10"),
        ("--depth 2 --batch 30 --microbatches 4", 4, r"--batch 30, --microbatches 4 x 2 copies\); leave one of"),
        ("--batch 30 --microbatch 4", None, "let --microbatch divide --batch"),
        ("--steps 0", None, "leave --schedule swarm out to evaluate"),
        ("--checkpoint x --resume x/step-00000002", None, "--resume auto"),
        ("--dtype float16", None, "--dtype float16 needs a loss scale, and a swarm has none; give --dtype bfloat16"),
        ("--dtype bfloat16-parameters", None, "--dtype bfloat16-parameters needs float32 copies of the parameters"),
        ("--offload-optimizer", None, "--offload-optimizer means nothing to a swarm: a peer updates its stage"),
        ("--recompute", None, "--recompute means nothing to a swarm: a peer always runs the forward"),
        ("--compile", None, "--compile means nothing to a swarm: microbatches of any number of rows"),
        ("--chunks 2", None, "a peer holds one stage; leave it out"),
        ("--seq 257", None, "sequence: 257, positions: 256"),
    ],
)
def test_what_means_nothing_to_a_swarm_is_refused(words, ranks, told):
    with pytest.raises(UsageError, match=told):
        job(words, ranks)


def test_only_a_swarm_is_joined_by_others():
    with pytest.raises(UsageError, match="add --schedule swarm"):
        GPT2Flags(schedule="gpipe", listen="tcp://127.0.0.1:0")
