"""`--all-reduce measured`: decided once, by rank 0, and said again by every checkpoint."""

import asyncio
from dataclasses import replace

import pytest

from apps.common.run.checks import check_sums
from apps.gpt2.checks import MEASURED, check_job
from apps.gpt2.config import GPT2Flags
from apps.gpt2.job import resolve
from apps.gpt2.planning.decide import decide_sums
from collectives.algorithms import parse_choice
from pipelined.errors import UsageError
from pipelined.programs.plan import Plan
from pipelined.state.checkpoints import checkpoint
from transports.local import world

ASKED = GPT2Flags(depth=2, all_reduce="measured", layers=1, d_model=8, heads=1, vocab=8)
WORDS = "recursive_doubling:2000,ring"


def decided(job):
    async def every():
        return await asyncio.gather(*(decide_sums(one, job) for one in world(job.plan.world_size)))

    first, *others = asyncio.run(every())
    assert all(other == first for other in others)
    return first


def resumed(path, before):
    """The job that goes on from a checkpoint, without tensors, of this one."""
    shard = checkpoint.write_shard(path, 1, 0, 1, {})
    checkpoint.commit(path, checkpoint.Meta(1, before.model.identity(), before.to_dict()), [shard], 1)
    return resolve(replace(ASKED, checkpoint=path, resume="auto"), 2)


@pytest.mark.parametrize("words", ["auto", "ring", WORDS])
def test_what_was_given_is_run_untouched(words):
    job = resolve(replace(ASKED, all_reduce=words), 2)
    assert decided(job) is job


def test_measured_values_are_in_the_resolved_configuration_and_printed(capsys):
    words = decided(resolve(ASKED, 2)).to_dict()["all_reduce"]
    assert words != "measured" and parse_choice(words)
    assert capsys.readouterr().out == f"all-reduce: {words} (as measured)\n"


def test_a_resumed_run_sums_as_the_one_before(tmp_path):
    before = resolve(replace(ASKED, all_reduce=WORDS), 2)
    assert decided(resumed(tmp_path, before)).config.all_reduce == WORDS


def test_a_resumed_run_that_is_arranged_otherwise_measures_anew(tmp_path, capsys):
    before = resolve(replace(ASKED, all_reduce=WORDS), 2)
    decided(resumed(tmp_path, replace(before, plan=Plan("gpipe", 2, 1, 4, 8))))
    assert "(as measured)" in capsys.readouterr().out


@pytest.mark.parametrize("words", ["measured", "auto", WORDS])
def test_the_flag_takes_names_sizes_and_measured(words):
    check_sums(words, [MEASURED])


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match=r"--all-reduce: unknown all-reduce algorithm 'fast'; known: auto.*measured"):
        check_sums("fast", [MEASURED])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"all_reduce": "measured"}, "measured may find others; use --all-reduce auto"),
        ({"all_reduce": "ring:99,native"}, "the all-reduce native has no reduce-scatter half"),
        ({"all_reduce": "auto", "schedule": "pipedream"}, "pipedream keeps versions of its weights"),
    ],
)
def test_what_a_divided_update_cannot_be_summed_by_is_refused_before_torch(given, message):
    with pytest.raises(UsageError, match=message):
        check_job(resolve(replace(ASKED, shard_optimizer=True, **given), 2))


def test_exact_sums_pin_the_threads_of_a_rank_in_the_resolved_configuration():
    assert resolve(GPT2Flags(depth=2, exact_sums=True), 2).to_dict()["threads"] == 1
    assert "threads" not in resolve(GPT2Flags(depth=2), 2).to_dict()
