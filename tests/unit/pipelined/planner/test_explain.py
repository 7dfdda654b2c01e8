"""The explanation of a plan shows the costs by which it was priced."""

import pytest

from pipelined.planner.explain import cost_lines
from pipelined.programs.plan import Plan


def row(op, microbatch, seconds):
    return {"op": op, "microbatch": microbatch, "seconds": {"instruction": [seconds, None]}}


@pytest.mark.parametrize(
    ("tensor", "forward", "backward", "update"),
    [pytest.param(1, "1000", "2000", "3000", id="rank"), pytest.param(2, "4000", "5000", "6000", id="team")],
)
def test_costs_of_a_team_are_those_of_a_member_with_its_share_of_a_microbatch(tensor, forward, backward, update):
    costs = {
        "costs": [row("F", 4, 1.0), row("B", 4, 2.0), row("U", 0, 3.0), row("F", 2, 9.0)],
        "member_costs": [row("F", 2, 4.0), row("B", 2, 5.0), row("U", 0, 6.0), row("F", 4, 9.0)],
    }
    plan = Plan("gpipe", 1, 1, 4, 1, tensor=tensor, layout="megatron" if tensor > 1 else "")
    lines = list(cost_lines(costs, plan))
    assert [line.split(" ms")[0].split()[-1] for line in lines] == [forward, backward, update]
