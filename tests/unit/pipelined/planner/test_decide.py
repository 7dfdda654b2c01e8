"""What is decided before a first step: whether to measure, and whether something is clearly better than the rule."""

import asyncio
from dataclasses import replace

import pytest
import torch

from apps.gpt2.config import GPT2Flags
from apps.gpt2.planning.model_to_plan import planned_model_of
from apps.gpt2.planning.team import split_text
from benchmarks.harness.timed_executor import TimedExecutor
from collectives import Links
from pipelined.aio.clock import RealClock
from pipelined.measurement.effort import BRIEF, Effort
from pipelined.planner import SearchRequest, SearchResult, StatedCosts, search
from pipelined.planner.candidates import Candidate
from pipelined.planner.decide import (
    Decision,
    choose,
    decide,
    decide_among_all,
)
from pipelined.planner.explain import MIB, reason
from pipelined.planner.trial import try_candidates
from pipelined.planner.worth_measuring import measuring_work, reason_not_to_measure, sizes_to_time, training_work
from pipelined.process.launch import ALONE, Launch
from pipelined.programs.plan import Plan
from pipelined.schedules import ScheduleError
from pipelined.simulation import Machine
from tests.unit.pipelined.planner.toys import Toy
from transports.local import world

MPI = Launch("mpi://", 0, 4, "mpirun", 0, 4)
BEST = Plan("gpipe", 1, 4, 2, 1)
WORST = Plan("gpipe", 4, 1, 8, 1)


def weighed(default, limit=float("inf"), fixed=None):
    toy = Toy(fixed=fixed or {})
    request = SearchRequest(toy, StatedCosts(toy.layer_costs, 10, 10.0), Machine(Links(1e-3, 1e-6, 0.0)), 4, limit)
    return request, choose(search(request), request.simulate(Candidate(default)))


def test_what_is_clearly_better_than_the_rules_arrangement_is_run():
    request, decision = weighed(WORST)
    assert decision.candidate.plan == BEST and decision.step_s == request.simulate(Candidate(BEST)).step_s
    assert "depth 4 x width 1 with microbatches of 8 takes" in decision.reason


def test_what_is_not_clearly_better_is_not(monkeypatch):
    monkeypatch.setattr("pipelined.planner.decide.MARGIN", 0.9)
    request, decision = weighed(WORST)
    assert decision.candidate.plan == WORST and decision.step_s == request.simulate(Candidate(WORST)).step_s
    assert "nothing of its kind is more than 90% faster" in decision.reason


def test_what_does_not_fit_is_not_run_however_fast_it_is(monkeypatch):
    monkeypatch.setattr("pipelined.planner.decide.MARGIN", 0.9)
    request, _ = weighed(BEST)
    limit = request.simulate(Candidate(BEST)).memory - 1
    decision = weighed(BEST, limit=limit)[1]
    assert decision.candidate.plan.depth > 1
    assert f"depth 1 x width 4 takes 0 MiB a rank of {limit / MIB:,.0f} MiB" in decision.reason


def test_data_parallelism_is_named_where_a_schedule_was_kept_and_it_is_clearly_faster():
    settings = {"schedule": "chimera", "depth": 4, "pipes": 2, "scale": "direct", "microbatches": 4}
    assert "--plan auto may take" in weighed(Plan("chimera", 4, 1, 2, 4), fixed=settings)[1].reason
    assert "--plan auto" not in weighed(WORST)[1].reason


def test_a_decision_is_reported_whole():
    decision = Decision(Candidate(WORST, True), "so", 0.25)
    assert Decision.of(decision.to_dict()) == decision


def test_a_decision_that_another_rank_reports_runs_no_schedule_s_code(tmp_path):
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    document = Decision(Candidate(WORST), "so").to_dict()
    document["plan"]["schedule"] = str(tmp_path / "evil.py")
    for named in (None, "other.py"):
        with pytest.raises(ScheduleError, match="not one of this project's"):
            Decision.of(document, named)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("plan", "launch", "cores", "steps", "why"),
    [
        (Plan("gpipe", 1, 1, 8, 1), ALONE, 8, 1000, "nothing to plan on one rank"),
        (Plan("chimera", 2, 4, 1, 1), replace(MPI, world_size=8, local_size=8), 1, 1000, "8 ranks on 1 cores"),
        (Plan("gpipe", 1, 5, 1, 1), replace(MPI, world_size=5, local_size=5), 5, 1000, "no other arrangement"),
        (BEST, MPI, 4, 2, "more than 3% of what 2 steps do"),
        (BEST, MPI, 4, 1000, None),
        (BEST, MPI, 1, 1000, None),
    ],
)
def test_where_measuring_cannot_pay_it_is_left(plan, launch, cores, steps, why):
    obstacle = reason_not_to_measure(Toy(), launch, plan, cores=cores, steps=steps, effort=BRIEF)
    assert obstacle is None if why is None else why in obstacle


def test_where_each_timed_stage_is_compiled_first_it_is_left():
    obstacle = reason_not_to_measure(Toy(fixed={"compile": True}), MPI, BEST, cores=4, steps=1000, effort=BRIEF)
    assert "compiling the stages" in obstacle


def test_work_is_counted_by_layers_rows_and_rounds():
    effort = Effort(warmup_rounds=1, min_rounds=2, neighbours=False, inner_layers=(1,), whole_layers=0)
    assert measuring_work(Toy(), [1, 2], effort) == 4 * 6 * 3 * (1 + 2) * 10
    assert training_work(Toy(), 5) == 5 * 3 * 4 * 8 * 10


def test_the_smallest_and_twice_the_rules_microbatch_are_timed():
    assert sizes_to_time([1, 2, 4, 8, 16], BEST) == [1, 4]
    assert sizes_to_time([8, 16], BEST) == [8]


def test_all_ranks_learn_the_same_decision():
    model = planned_model_of(GPT2Flags(layers=2, d_model=16, heads=2, seq=8, batch=4, schedule="chimera"))
    default, threads = Plan("chimera", 2, 1, 2, 2), torch.get_num_threads()

    async def all_ranks():
        return await asyncio.gather(*(decide(transport, model, ALONE, default) for transport in world(2)))

    try:
        first, second = asyncio.run(all_ranks())
    finally:
        torch.set_num_threads(threads)
    assert first == second and first.candidate.plan.schedule == "chimera"
    assert first.candidate.plan.world_size == 2 and first.step_s > 0


def test_the_best_are_tried_data_parallelism_with_them_and_the_fastest_is_chosen():
    toy = Toy()
    result = search(SearchRequest(toy, StatedCosts(toy.layer_costs, 10, 10.0), Machine(Links(1.0, 1e-3, 0.0)), 4))
    outcomes = result.worth_trying(2)
    assert [outcome.candidate for outcome in outcomes[:2]] == [outcome.candidate for outcome in result.best[:2]]
    assert result.baseline.candidate in [outcome.candidate for outcome in outcomes] and result.worth_trying(0) == []
    tried = result.with_trials(outcomes, [3.0, *range(1, len(outcomes))])
    assert tried.chosen.candidate == outcomes[1].candidate and tried.chosen.expected_s == 1
    assert len(tried.best) == len(result.best) and "a step took 1000.0 ms when it was tried" in reason(tried)


def test_data_parallelism_is_not_tried_where_the_user_chose_otherwise():
    toy = Toy(fixed={"depth": 2})
    result = search(SearchRequest(toy, StatedCosts(toy.layer_costs, 10, 10.0), Machine(Links(1.0, 1e-3, 0.0)), 4))
    assert {outcome.candidate.plan.depth for outcome in result.worth_trying(3)} == {2}


@pytest.mark.in_turns(2)
def test_all_ranks_run_what_took_least():
    model = planned_model_of(
        GPT2Flags(layers=1, d_model=16, heads=2, seq=8, batch=2, schedule="gpipe", recompute=False)
    )
    threads = torch.get_num_threads()

    async def all_ranks():
        return await asyncio.gather(*(decide_among_all(transport, model, ALONE) for transport in world(2)))

    try:
        first, second = asyncio.run(all_ranks())
    finally:
        torch.set_num_threads(threads)
    assert first == second and first.candidate.plan.world_size == 2 and "when it was tried" in first.reason


def test_a_plan_of_a_team_is_tried_on_the_split_model():
    model = planned_model_of(GPT2Flags(layers=1, d_model=16, heads=2, seq=8, batch=2, tensor=2))
    plan = Plan("gpipe", 1, 1, 2, 1, tensor=2, layout=split_text("megatron", 2))
    request = SearchRequest(model, StatedCosts(model.layer_costs, 8, 1e9), Machine(Links()), 2)
    outcome = request.simulate(Candidate(plan))
    result = SearchResult(request=request, best=[outcome], baseline=None, considered=1, too_big=0, simulated=1)
    assert result.worth_trying(1) == [outcome]

    async def on_rank(end):
        executor = TimedExecutor({}, RealClock())
        return await try_candidates(end, model, [outcome.candidate], executor, lambda line: None)

    async def all_ranks():
        return await asyncio.gather(*map(on_rank, world(2)))

    (seconds,), others = asyncio.run(all_ranks())
    assert seconds > 0 and others == []
