"""The public face: every name that it lists is there."""

import ast
import re
from inspect import Parameter, signature
from pathlib import Path
from typing import get_type_hints

import pytest

import pipelined as pp


def test_every_public_name_can_be_had():
    assert [name for name in pp.__all__ if getattr(pp, name, None) is None] == []
    assert set(pp._HOMES) == set(pp.__all__) - {"__version__"}


def test_a_type_checker_finds_each_public_name_in_the_module_that_it_comes_from():
    (block,) = (part for part in ast.parse(Path(pp.__file__).read_text()).body if isinstance(part, ast.If))
    imports = {alias.name: part.module for part in block.body for alias in part.names}
    assert imports == {**pp._HOMES, "swarm": "pipelined"}


CALLS = [pp.train, pp.plan, pp.prove, pp.simulate, pp.draw, pp.Trainer.step, pp.AsyncTrainer.step]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__qualname__)
def test_the_class_of_a_result_is_public(call):
    assert get_type_hints(call)["return"] in map(pp.__getattr__, pp._HOMES)


def test_the_updates_of_a_stage_map_and_the_end_of_a_job_are_public():
    assert get_type_hints(pp.StageMap)["updates"] is pp.Updates
    assert issubclass(pp.JobFailed, Exception)


@pytest.mark.parametrize("call", [pp.train, pp.Trainer, pp.plan, pp.prove, pp.simulate], ids=lambda call: call.__name__)
def test_the_help_of_a_call_has_a_line_for_each_argument(call):
    lines = re.findall(r"^ {4,8}([a-z_, ]+): ", call.__doc__, re.MULTILINE)
    described = {name.strip() for names in lines for name in names.split(",")}
    assert set(signature(call).parameters) - described == set()


@pytest.mark.parametrize("call", [pp.Trainer, pp.AsyncTrainer, pp.plan], ids=["Trainer", "AsyncTrainer", "plan"])
def test_what_a_call_takes_as_train_does_has_the_same_name_place_and_default(call):
    train, other = (signature(one).parameters for one in (pp.train, call))
    shared = {
        name: other[name].default for name in train if name in other and name not in ("plan", "loss", "optimizer")
    }
    assert shared == {name: train[name].default for name in shared}
    assert list(shared) == [name for name in other if name in shared]
    assert all(other[name].kind is Parameter.KEYWORD_ONLY for name in ("loss", "optimizer"))
