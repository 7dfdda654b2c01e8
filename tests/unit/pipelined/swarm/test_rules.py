"""The norm's clip and the mean are one factor; another configuration has another digest."""

from dataclasses import fields, replace

import pytest

from pipelined.errors import UsageError
from pipelined.membership.messaging.reasons import Next, Reason
from pipelined.swarm.rules import Rules, stop_if_refused
from transports.rpc import Rejected

RULES = Rules(model="m", stages=2, batch=8, samples=4.0, clip=1.0)


def test_without_a_clip_sums_become_means():
    assert replace(RULES, clip=0.0).scale(1e9) == 1 / 4.0


def test_a_mean_within_the_clip_stays():
    assert RULES.scale(4.0) == 1 / 4.0


@pytest.mark.parametrize("norm", [8.0, 1e6])
def test_a_mean_beyond_the_clip_gets_its_norm(norm):
    assert norm * RULES.scale(norm) == pytest.approx(RULES.clip)


@pytest.mark.parametrize("name", [each.name for each in fields(Rules)])
def test_every_rule_is_in_the_digest(name):
    value = getattr(RULES, name)
    other = replace(RULES, **{name: value + ("x" if isinstance(value, str) else 1)})
    assert other.digest != RULES.digest and replace(RULES).digest == RULES.digest


def test_evaluations_are_due_every_so_many_steps_and_after_the_last_and_nowhere_without_data():
    every = replace(RULES, eval_every=3, eval_batch=2)
    assert [step for step in range(8) if every.evaluates(step, is_last=step == 7)] == [3, 6, 7]
    assert [step for step in range(8) if replace(every, eval_every=0).evaluates(step, is_last=step == 7)] == [7]
    assert not any(replace(every, eval_batch=0).evaluates(step, is_last=True) for step in range(8))


@pytest.mark.parametrize("name", ["eval_every", "eval_batch"])
def test_less_than_no_evaluation_is_refused(name):
    with pytest.raises(UsageError, match=f"{name} of at least 0"):
        replace(RULES, **{name: -1})


@pytest.mark.parametrize("reason", Reason)
def test_a_process_ends_only_if_the_leader_rejects_its_version_or_its_model(reason):
    rejection = Rejected(reason, here=2, there=1)
    if reason.next is Next.STOP:
        with pytest.raises(UsageError, match=r"\(here: 2, there: 1\)"):
            stop_if_refused(rejection)
    else:
        stop_if_refused(rejection)
    assert (reason.next is Next.STOP) == (reason in (Reason.OTHER_VERSION, Reason.OTHER_MODEL))
