"""The update rule alone: the versions of the papers' recurrences, for every order in which a worker may run."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelined.programs.costs import Costs
from pipelined.programs.recording import record
from pipelined.programs.staleness import version_uses
from pipelined.programs.updates.update_rule import Apply, Collect, UpdateRule
from pipelined.schedules import Shape, Updates, find
from pipelined.schedules.parts.placements import one_pipe

depths, seeds = st.integers(1, 6), st.integers(0, 2**32)


def stage_map(depth, microbatches, updates):
    return replace(one_pipe("a test", Shape(depth, microbatches)), updates=updates)


def any_order(seed, microbatches, most):
    """Forwards and backwards in an order that keeps at most `most` microbatches alive."""
    chance, begun, done, order = random.Random(seed), 0, 0, []
    while done < microbatches:
        forward = begun < microbatches and begun - done < most and (begun == done or chance.random() < 0.5)
        order.append(("F", begun) if forward else ("B", done))
        begun, done = begun + forward, done + (not forward)
    return order


class Walk:
    """Runs an order under a rule; refuses an update that is applied before its gradient is there, or out of turn.

    Attributes:
        used: for each microbatch its versions by bucket.
        fresh: for each microbatch the complete updates when its forward began.
        staleness: of each microbatch.
    """

    def __init__(self, rule, buckets, order, every):
        self.used, self.fresh, self.staleness = [], [], []
        self._collected, self._applied = ({bucket: 0 for bucket in buckets} for _ in range(2))
        done = 0
        for op, microbatch in order:
            if op == "F":
                use = rule.before_forward(microbatch)
                self._carry_out(use.applies)
                assert all(version <= self._applied[bucket] for bucket, version in use.versions.items())
                self.used.append(use.versions)
                self.fresh.append(done // every)
                self.staleness.append(use.staleness)
            else:
                done += 1
                self._carry_out(rule.after_backward())
                assert set(self._collected.values()) == {done // every}
        self._carry_out(rule.drain())
        assert self._applied == self._collected

    def _carry_out(self, decisions):
        for decision in decisions:
            made = self._collected if isinstance(decision, Collect) else self._applied
            assert decision.update == made[decision.bucket]
            assert isinstance(decision, Collect) or decision.update < self._collected[decision.bucket]
            made[decision.bucket] += 1


@given(depths, st.data(), st.integers(1, 4), st.integers(1, 5), seeds)
def test_without_a_delay_a_forward_uses_every_complete_update(depth, data, every, updates, seed):
    """Ravnest, equation 2: the delay is the number of updates since the microbatch's forward."""
    stage = data.draw(st.integers(0, depth - 1))
    order, number = any_order(seed, every * updates, depth - stage), every * updates
    walk = Walk(UpdateRule(stage_map(depth, number, Updates(every)), [(stage,)]), [(stage,)], order, every)
    assert [used[stage,] for used in walk.used] == walk.fresh
    assert walk.staleness == [m // every - fresh for m, fresh in enumerate(walk.fresh)]


@given(depths, st.data(), st.integers(0, 3), st.integers(1, 5), st.booleans(), seeds)
def test_2bw_uses_the_version_before_the_newest_in_any_order(depth, data, more, steps, resumed, seed):
    """w(t+1) = w(t) - lr g(w(t-1)): microbatch m uses version m // N - 1, or the oldest that there is."""
    stage, each = data.draw(st.integers(0, depth - 1)), depth + more
    buckets = [(stage,), (0, depth - 1)] if depth > 1 else [(0,)]
    kept = dict.fromkeys(buckets, -1) if resumed else {}
    rule = UpdateRule(stage_map(depth, each * steps, Updates(each, delay=1)), buckets, kept)
    walk = Walk(rule, buckets, any_order(seed, each * steps, depth - stage), each)
    expected = [max(m // each - 1, -1 if resumed else 0) for m in range(each * steps)]
    assert walk.used == [dict.fromkeys(buckets, version) for version in expected]
    assert set(walk.staleness) == ({1} if resumed else {0, 1} if steps > 1 else {0})


@given(st.integers(2, 6), st.integers(1, 20), seeds)
def test_a_tied_weight_has_the_same_version_at_both_ends_for_every_timing(depth, microbatches, seed):
    tied, expected = (0, depth - 1), [max(m - (depth - 1), 0) for m in range(microbatches)]
    for stage in tied:
        rule = UpdateRule(stage_map(depth, microbatches, Updates(1)), [tied, (stage,)])
        walk = Walk(rule, [tied, (stage,)], any_order(seed, microbatches, depth - stage), 1)
        assert [used[tied] for used in walk.used] == expected
        assert [used[stage,] for used in walk.used] == walk.fresh


@given(depths, st.integers(1, 6), st.integers(1, 3), st.lists(st.floats(0.1, 5.0), min_size=12, max_size=12))
def test_the_rule_and_the_program_s_closed_form_agree(depth, microbatches, steps, seconds):
    shape, costs = Shape(depth, microbatches, steps=steps), Costs(seconds[:depth], seconds[6 : 6 + depth])
    for name in ("pipedream", "async_1f1b"):
        program = record(find(name), shape, costs)
        for stage, worker in enumerate(program.workers):
            walk = Walk(
                UpdateRule(program.stage_map, [(stage,)]), [(stage,)], [(i.op, i.microbatch) for i in worker], 1
            )
            expected = list(version_uses(program, stage))
            assert [used[stage,] for used in walk.used] == [use.version for use in expected]
            assert walk.staleness == [use.staleness for use in expected]


@pytest.mark.parametrize("name, knobs", [("gpipe", {}), ("chimera", {"scale": "backward-halving"}), ("zb_v", {})])
def test_a_flush_is_one_update_after_all(name, knobs):
    program = record(find(name), Shape(4, 4, knobs))
    assert program.stage_map.updates.every == 4 * program.stage_map.pieces
    for worker, instructions in enumerate(program.workers):
        buckets = [(stage,) for stage in program.stage_map.stages_of(worker)] + [(0, 3)]
        rule = UpdateRule(program.stage_map, buckets)
        for i in instructions:
            if i.op == "F":
                use = rule.before_forward(i.microbatch)
                assert not use.applies and not use.staleness and set(use.versions.values()) == {0}
            elif i.op in "BW":
                assert rule.after_backward() == []
        assert rule.drain() == [Apply(bucket, 0) for bucket in buckets] and rule.drain() == []


def test_a_stage_with_nothing_to_train_has_no_updates():
    rule = UpdateRule(stage_map(2, 2, Updates(1)), [])
    use = rule.before_forward(1)
    assert (use.applies, use.versions, use.staleness) == ((), {}, 0)
    assert rule.after_backward() == rule.drain() == []
