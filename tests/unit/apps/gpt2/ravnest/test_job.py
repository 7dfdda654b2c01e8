"""What GPT-2's flags come to in Ravnest's clusters: ranks, batches and rounds, and what is refused."""

import json

import pytest

from apps.gpt2.config import GPT2Flags, parse
from apps.gpt2.ravnest.job import resolve_ravnest
from pipelined.errors import UsageError


def job(words="", ranks=None):
    return resolve_ravnest(parse(["--schedule", "ravnest", *words.split()]), ranks)


@pytest.mark.parametrize(
    "words, started, ranks", [("", None, 3), ("--clusters 2", None, 4), ("--clusters 2", 5, 5), ("", 1, 1)]
)
def test_by_default_ranks_are_nodes_and_a_cluster_has_two_of_them(words, started, ranks):
    assert job(words, started).ranks == ranks


@pytest.mark.parametrize(
    "words, batch, rows, every",
    [
        ("", 32, 4, 16),
        ("--batch 12 --microbatch 4", 12, 4, 18),
        ("--microbatches 5 --microbatch 2", 10, 2, 20),
        ("--batch 12 --microbatch 4 --average-every 3", 12, 4, 3),
    ],
)
def test_rounds_are_whole_steps_apart(words, batch, rows, every):
    settings = job(words).settings
    assert (settings.batch, settings.microbatch, settings.average_every) == (batch, rows, every)


def test_flags_of_the_model_and_the_numbers_go_to_the_subject():
    words = "--preset gpt2 --layers 2 --d-model 24 --heads 3 --vocab 300 --seq 9 --dropout 0.2 --lr 0.1 --warmup 3"
    resolved = job(f"{words} --weight-decay 0 --seed 5 --steps 7 --dtype bfloat16 --clusters 3 --ahead 5")
    settings = resolved.settings
    assert (settings.preset, settings.layers, settings.d_model, settings.heads, settings.seq) == ("gpt2", 2, 24, 3, 9)
    assert (settings.dropout, settings.lr, settings.warmup, settings.weight_decay) == (0.2, 0.1, 3, 0.0)
    assert (settings.seed, settings.steps, settings.dtype) == (5, 7, "bfloat16")
    assert (resolved.forming.clusters, resolved.forming.ahead, resolved.model.tied) == (3, 5, False)
    assert json.loads(resolved.json())["resolved"]["vocab"] == 300


@pytest.mark.parametrize(
    "words, ranks, told",
    [
        ("--clusters 4", 3, r"more clusters than nodes \(--clusters: 4, nodes: 3\)"),
        ("--average-every 3", None, "rounds are not whole steps apart"),
        ("--depth 2", None, "--depth 2 means nothing to Ravnest's clusters: the plan decides it, from --clusters"),
        ("--clip 1", None, "no node knows the global norm"),
        ("--init x", None, "every node draws its own layers"),
        (
            "--checkpoint d --resume d/x",
            None,
            "a job of clusters resumes from what all stages saved",
        ),
        ("--compile", None, "--compile means nothing .*a node that takes over layers would compile"),
        ("--offload-optimizer", None, "--offload-optimizer means nothing .* updates its layers where it computes"),
        (
            "--dtype bfloat16-parameters",
            None,
            "bfloat16-parameters needs float32 copies of the parameters",
        ),
        ("--pipes 2", None, "their schedule is async_1f1b"),
        ("--ahead 7,4,1", None, "give that of a cluster's first stage"),
        ("--ahead 5000", None, r"--ahead must be at most 4096 \(it is 5000\)"),
        ("--steps 0", None, "leave --schedule ravnest out to evaluate"),
        ("--dtype float16", None, "give --dtype bfloat16"),
    ],
)
def test_what_means_nothing_to_clusters_is_refused(words, ranks, told):
    with pytest.raises(UsageError, match=told):
        job(words, ranks)


def test_only_ravnest_has_clusters():
    with pytest.raises(UsageError, match="--clusters 2, --schedule open"):
        GPT2Flags(clusters=2)
