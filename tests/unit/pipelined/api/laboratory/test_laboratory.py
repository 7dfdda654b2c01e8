"""The laboratory from Python: the answers of the commands, and schedules that are given as classes and functions."""

import json
import re

import numpy as np
import pytest

import pipelined as pp
from pipelined.__main__ import main
from pipelined.schedules import find
from pipelined.schedules.parts.placements import one_pipe

PLAN = pp.Plan("gpipe", depth=2, width=1, microbatch_size=1, microbatches=2)


async def one_after_the_other(worker):
    """A schedule as a function alone: each microbatch forward and backward before the next."""
    for _ in worker.stage_map.microbatches[0]:
        await worker.forward(0)
        await worker.backward(0)


class AllForwards:
    """A schedule as a class: all forwards, then all backwards."""

    KNOBS = (pp.Knob("rounds", 1, "how often", least=1),)

    def stage_map(self, shape):
        return one_pipe("AllForwards", shape)

    async def schedule(self, worker):
        for verb in (worker.forward, worker.backward):
            for _ in worker.stage_map.microbatches[0]:
                await verb(0)


class WithoutSchedule:
    def stage_map(self, shape):
        return one_pipe("WithoutSchedule", shape)


def told(capsys, *words):
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def as_json(result):
    return json.loads(json.dumps(result.to_dict()))


def test_a_proof_is_what_the_command_prints(capsys):
    words = ["schedule", "chimera", "--depth", "4", "--microbatches", "8", "--pipes", "4", "--costs", "backward=3"]
    proof = pp.prove("chimera", depth=4, microbatches=8, pipes=4, costs={"backward": 3})
    assert as_json(proof) == told(capsys, *words)
    assert main(words) == 0 and capsys.readouterr().out == f"{proof}\n"


def test_a_proof_without_a_flush_is_what_the_command_prints(capsys):
    words = ["schedule", "pipedream", "--depth", "2", "--microbatches", "2", "--steps", "3"]
    assert as_json(pp.prove("pipedream", depth=2, microbatches=2, steps=3)) == told(capsys, *words)


def test_a_simulation_is_what_the_command_prints(capsys):
    words = [
        "simulate",
        "zb_h1",
        "--depth",
        "2",
        "--microbatches",
        "4",
        "--width",
        "2",
        "--links",
        "alpha=0.1,beta=1e-3",
    ]
    words += [
        "--costs",
        "forward=1/2,backward=2/4,update=0.5",
        "--memory",
        "parameters=1K,activation=64/32",
        "--recompute",
    ]
    simulation = pp.simulate(
        "zb_h1",
        depth=2,
        microbatches=4,
        width=2,
        links={"alpha": 0.1, "beta": 1e-3},
        costs={"forward": [1, 2], "backward": [2, 4], "update": 0.5},
        memory={"parameters": 1024, "activation": [64, 32]},
        recompute=True,
    )
    assert as_json(simulation) == told(capsys, *words)
    assert main(words) == 0 and capsys.readouterr().out == f"{simulation}\n"


def test_a_function_and_a_class_are_schedules():
    alone = pp.prove(one_after_the_other, depth=2, microbatches=3)
    assert alone.makespan == 3 * 2 * 3 and alone.peak_activations == [1, 1]
    own, known = pp.prove(AllForwards, depth=4, microbatches=6), pp.prove("gpipe", depth=4, microbatches=6)
    assert own.timeline.workers == known.timeline.workers
    assert pp.simulate(AllForwards, depth=4, microbatches=6).step_s == known.makespan


def test_a_schedule_given_as_a_class_is_found_again_under_its_name(capsys):
    proof = pp.prove(AllForwards, depth=2, microbatches=2, rounds=2)
    assert proof.schedule == f"{__name__}:AllForwards" and find(proof.schedule).__name__ == proof.schedule
    words = ["schedule", proof.schedule, "--depth", "2", "--microbatches", "2", "--rounds", "2"]
    assert as_json(proof) == told(capsys, *words)


def test_a_picture_shows_and_saves(tmp_path):
    proof = pp.prove("one_f_one_b", depth=2, microbatches=2)
    assert proof._repr_svg_().startswith("<?xml") and "makespan 9" in repr(pp.draw(proof))
    pp.draw(pp.simulate("gpipe", depth=2, microbatches=2)).save(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(pp.UsageError, match=r"a\.pdf; name a file that ends in \.svg or \.png"):
        pp.draw("gpipe", depth=2, microbatches=2).save(tmp_path / "a.pdf")


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: pp.prove("gpip", depth=2, microbatches=2), "unknown schedule 'gpip'"),
        (lambda: pp.prove("gpipe", depth=2), "microbatches is missing"),
        (
            lambda: pp.prove("chimera", depth=2, microbatches=2, pipe=2),
            "unknown argument 'pipe' .chimera takes: scale, pi",
        ),
        (
            lambda: pp.prove("zb_h1", depth=2, microbatches=2, x=2),
            "unknown argument 'x' .zb_h1 takes no settings.; correct",
        ),
        (
            lambda: pp.prove("gpipe", depth=4, microbatchs=4),
            "unknown argument 'microbatchs'.*did you mean microbatches",
        ),
        (lambda: pp.prove("gpipe", depth=2, microbatches=2, costs={"forwards": 1}), "unknown cost 'forwards'"),
        (lambda: pp.prove("gpipe", depth=2, microbatches=2, costs={"forward": [1, 0]}), "forward is 0; only p2p may"),
        (lambda: pp.prove(WithoutSchedule, depth=2, microbatches=2), "it lacks schedule"),
        (
            lambda: pp.prove(AllForwards(), depth=2, microbatches=2),
            r"^a schedule must be a name, a class or .* \(got: AllForwards <",
        ),
        (
            lambda: pp.prove(PLAN),
            r"^a schedule must be .* of a worker \(got: Plan Plan\(.*\); of a plan give plan.schedule",
        ),
        (lambda: pp.simulate(PLAN), "^a schedule must be .*got: Plan "),
        (lambda: pp.prove(lambda worker: None, depth=2, microbatches=2), "define it at the top of a module"),
        (
            lambda: pp.simulate("gpipe", depth=2, microbatches=2, costs={"p2p": 1}),
            "seconds are alpha of `links=`",
        ),
        (lambda: pp.simulate("gpipe", depth=2, microbatches=2, links={"a": 1}), "`links=` knows no 'a'"),
        (lambda: pp.simulate("gpipe", depth=2, microbatches=2, memory={"message": [1, 2, 3]}), "values: 3, depth: 2"),
    ],
)
def test_a_mistake_is_one_exception_with_a_remedy(call, message):
    with pytest.raises(pp.UsageError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "settings", "fact"),
    [
        (pp.prove, {"depth": "4"}, "depth must be a whole number, such as 4 (got: str '4')"),
        (pp.prove, {"mailbox": 0.5}, "mailbox must be a whole number, such as 4 (got: float 0.5)"),
        (pp.prove, {"budget": "x"}, "budget must be a number, such as 1.5 (got: str 'x')"),
        (pp.prove, {"costs": {"forward": "x"}}, "the cost forward must be a number, such as 1.5 (got: str 'x')"),
        (pp.prove, {"costs": {"p2p": [1] * 4}}, "the cost p2p must be a number, such as 1.5 (got: list [1, 1, 1, 1])"),
        (pp.prove, {"costs": 3}, "`costs=` is 3, without names; give numbers by name"),
        (
            pp.simulate,
            {"costs": {"forward": ["x"] * 4}},
            "`costs=`: forward must be a number, such as 1.5 (got: str 'x')",
        ),
        (pp.simulate, {"memory": {"parameters": float("nan")}}, "parameters must be finite bytes from 0 up (got: nan)"),
        (pp.simulate, {"links": {"alpha": None}}, "`links=`: alpha must be a number, such as 1.5 (got: NoneType None)"),
        (pp.simulate, {"cores": True}, "cores must be a whole number, such as 4 (got: bool True)"),
        (pp.simulate, {"recompute": "x"}, "recompute is 'x', which is neither True nor False"),
        (pp.simulate, {"interference": "x"}, "interference must be a number, such as 1.5 (got: str 'x')"),
        (pp.prove, {"costs": {"forward": 10**400}}, "the cost forward is beyond the largest float (1.8e+308); give"),
        (pp.simulate, {"costs": {"update": 10**400}}, "`costs=`: update is beyond the largest float (1.8e+308); give"),
        (pp.simulate, {"memory": {"message": 10**9999}}, "`memory=`: message is beyond the largest float"),
        (pp.simulate, {"links": {"alpha": 10**400}}, "`links=`: alpha is beyond the largest float (1.8e+308); give"),
    ],
)
def test_a_value_of_another_type_is_refused_with_a_remedy(call, settings, fact):
    with pytest.raises(pp.UsageError, match=re.escape(fact)) as refused:
        call("chimera", **{"depth": 4, "microbatches": 4, **settings})
    assert "give" in str(refused.value) or "must be" in str(refused.value)


def test_a_proof_of_too_many_steps_is_refused():
    with pytest.raises(pp.UsageError, match="microbatches in all steps is 4000000000 and can be 65536 at most"):
        pp.prove("pipedream", depth=4, microbatches=4, steps=10**9)


def test_a_proof_takes_one_cost_for_each_stage_and_no_more():
    """The third cost of two stages was left out in silence."""
    with pytest.raises(pp.UsageError, match=r"other stages \(stages with a cost: 3, depth: 2\); give one number"):
        pp.prove("gpipe", depth=2, microbatches=2, costs={"forward": [1.0, 2.0, 3.0]})


@pytest.mark.parametrize("call", [pp.prove, pp.simulate])
def test_a_list_of_one_cost_is_for_every_stage(call):
    def costs(forward):
        return {"forward": forward, "backward": 1}

    one, listed = (call("gpipe", depth=4, microbatches=2, costs=costs(each)).makespan for each in (1.5, [1.5]))
    assert one == listed


@pytest.mark.parametrize("halves", [{}, {"backward_input": 0.015}, {"backward_weight": 0.005}])
@pytest.mark.parametrize("backward", [0.02, [0.02, 0.04, 0.02, 0.06]])
def test_a_proof_and_a_simulation_take_the_same_halves_of_a_backward(halves, backward):
    given = {"depth": 4, "microbatches": 8, "costs": {"forward": 0.01, "backward": backward, **halves}}
    assert pp.prove("zb_h1", **given).makespan == pytest.approx(pp.simulate("zb_h1", **given).makespan)


@pytest.mark.parametrize(
    ("schedule", "unit"),
    [("chimera", "microbatches"), ("interleaved", "stage inputs"), ("zb_v", "stage inputs")],
)
def test_a_proof_counts_the_stages_of_a_pipe_that_one_worker_holds(schedule, unit):
    settings = {"depth": 8, "microbatches": 8} | ({"chunks": 2} if schedule == "interleaved" else {})
    assert f"({unit} a worker)" in pp.prove(schedule, **settings).text()
    with pytest.raises(pp.UsageError, match=rf"more alive than the budget \({unit}: 2, budget: 1\)"):
        pp.prove(schedule, budget=1, **settings)


@pytest.mark.parametrize("call", [pp.prove, pp.simulate])
def test_an_input_half_that_takes_the_whole_backward_is_refused(call):
    with pytest.raises(pp.UsageError, match=r"takes all of the backward.*give the weight half's seconds too"):
        call("zb_h1", depth=2, microbatches=2, costs={"backward": [2, 3], "backward_input": [1, 3]})


@pytest.mark.parametrize("call", [pp.prove, pp.simulate])
def test_numpys_whole_numbers_give_the_json_of_pythons(call):
    """A depth of numpy failed as a KeyError, and microbatches of numpy when the JSON was written."""
    given = call("chimera", depth=np.int64(4), microbatches=np.int64(4), pipes=np.int64(2))
    assert json.dumps(given.to_dict()) == json.dumps(call("chimera", depth=4, microbatches=4, pipes=2).to_dict())
