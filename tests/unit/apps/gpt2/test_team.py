"""`--tensor` and `--layout`: what is run, and what is refused before torch is imported."""

import pytest

from apps.gpt2.config import Config
from apps.gpt2.job import resolve
from pipelined.errors import UsageError


def test_a_team_has_depth_1_by_default_and_the_other_ranks_are_groups():
    plan = resolve(Config(tensor=2), 4).plan
    assert (plan.depth, plan.width, plan.tensor, plan.world_size) == (1, 2, 2, 4)
    assert plan.batch == resolve(Config(), 1).plan.batch
    assert resolve(Config(tensor=3, layout="data"), None).plan.world_size == 3


def test_a_depth_is_that_of_teams():
    plan = resolve(Config(tensor=4, depth=2), 16).plan
    assert (plan.depth, plan.width, plan.tensor, plan.schedule) == (2, 2, 4, "chimera")


def test_one_rank_a_worker_has_no_layout():
    job = resolve(Config(), 1)
    assert (job.plan.tensor, job.factors) == (1, {})


def test_the_layout_is_described():
    text = resolve(Config(tensor=2), 2).describe()
    assert "layout: megatron, 2 ranks a worker (rows.columns.contraction: c_attn 1.2.1, attn.c_proj 1.1.2" in text


@pytest.mark.parametrize(
    ("given", "ranks", "message"),
    [
        ({"tensor": 2}, 3, r"--tensor does not divide the ranks \(--tensor 2, ranks: 3\)"),
        ({"layout": "data"}, 1, r"one rank splits nothing \(--layout data, --tensor 1\)"),
        ({"tensor": 2, "layout": "rows"}, 2, "no layout: 'rows'"),
        ({"tensor": 8}, 8, r"more column shards than heads \(c_attn, shards: 8, heads: 4\)"),
        ({"tensor": 2, "layout": "data", "microbatch": 1}, 2, "more row shards than sequences in a microbatch"),
        ({"tensor": 2, "schedule": "pipedream_2bw"}, 2, "only a schedule with a flush is split over ranks"),
        ({"tensor": 2, "exact_sums": True}, 2, "--tensor 2 does not go with --exact-sums True yet"),
        ({"tensor": 2, "all_reduce": "measured"}, 2, "--tensor 2 does not go with --all-reduce measured yet"),
    ],
)
def test_what_does_not_go_with_a_team_is_refused(given, ranks, message):
    with pytest.raises(UsageError, match=message):
        resolve(Config(**given), ranks)
