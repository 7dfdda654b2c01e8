"""Exceptions of a user's functions: one error that says which call it was, what it raised, where, and what to do."""

import re

import pytest
import torch
from torch import nn

import pipelined as pp
from pipelined.api.data.batches import BatchFeed
from pipelined.api.data.feed import Feed, MicrobatchFeed
from pipelined.api.user_optimizer import UserOptimizer
from pipelined.training.models.batch import BatchError

HERE = r"at test_user_code\.py, line \d+ \(.+\)"


def parameters():
    return dict(nn.Linear(3, 2).named_parameters())


def sgd(given):
    return torch.optim.SGD(given, lr=0.1)


def too_slow(given):
    return torch.optim.SGD(given, lr=-1.0)


def failing(*arguments):
    raise KeyError("gamma")


class FailsLater(torch.optim.lr_scheduler.LambdaLR):
    """A scheduler whose `step()` raises from the second call on; its first call is that of its constructor."""

    def __init__(self, optimizer):
        self.calls = 0
        super().__init__(optimizer, lambda step: 1.0)

    def step(self, epoch=None):
        self.calls += 1
        if self.calls > 2:
            raise ZeroDivisionError("no such step")
        super().step()


def test_an_optimizer_that_cannot_be_built_names_its_parameters_and_the_line():
    with pytest.raises(pp.UsageError) as refused:
        UserOptimizer(too_slow).build(parameters())
    assert re.fullmatch(
        rf"`optimizer` for 2 parameters \(weight to bias\) raised ValueError: Invalid learning rate: -1.0, {HERE}; "
        "correct it: it is called with a list of parameters, and returns an optimizer of torch",
        str(refused.value),
    )
    assert isinstance(refused.value.__cause__, ValueError)


def test_a_scheduler_that_cannot_be_built_names_the_optimizer():
    with pytest.raises(pp.UsageError) as refused:
        UserOptimizer(sgd, scheduler=failing).build({"only": nn.Parameter(torch.ones(1))})
    assert re.fullmatch(
        rf"`lr_scheduler` for the SGD of 1 parameter \(only\) raised KeyError: 'gamma', {HERE}; "
        "correct it: it is called with an optimizer, and returns a scheduler of torch",
        str(refused.value),
    )
    assert isinstance(refused.value.__cause__, KeyError)


def test_a_scheduler_that_cannot_be_built_again_is_named_where_a_run_is_resumed():
    given = [torch.optim.lr_scheduler.StepLR, failing]
    optimizer = UserOptimizer(sgd, scheduler=lambda made: given.pop(0)(made, 1))
    optimizer.build(parameters())
    with pytest.raises(pp.UsageError, match=r"`lr_scheduler` for the SGD of 2 parameters .* raised KeyError: 'gamma'"):
        optimizer.resume(3)


def test_a_step_of_a_scheduler_that_fails_is_named_by_its_number():
    optimizer = UserOptimizer(sgd, scheduler=FailsLater)
    optimizer.build(parameters()).step()  # torch expects an update before each step of a scheduler
    optimizer.step()
    with pytest.raises(pp.UsageError) as refused:
        optimizer.step()
    assert re.match(
        r"step 2 of `lr_scheduler` \(FailsLater\) for the SGD of 2 parameters \(weight to bias\) raised "
        rf"ZeroDivisionError: no such step, {HERE}; ",
        str(refused.value),
    )
    with pytest.raises(pp.UsageError, match="step 2 of `lr_scheduler`"):
        optimizer.resume(5)


def test_out_of_memory_in_a_user_s_function_stays_what_it_is():
    def hungry(given):
        raise MemoryError

    with pytest.raises(MemoryError):
        UserOptimizer(hungry).build(parameters())


def test_an_exception_without_a_message_is_its_name_alone():
    with pytest.raises(BatchError, match=r"`inputs` of the Feed for microbatch 0 of step 0 raised AssertionError, at"):
        MicrobatchFeed(Feed(lambda step, microbatch: [][step:].count(0) or no_more(), failing)).rows_each(1)


def no_more():
    raise AssertionError


@pytest.mark.parametrize("part", ["inputs", "targets"])
def test_a_feed_that_raises_is_named_with_the_step_and_the_microbatch(part):
    rows = [torch.ones(2, 3)]
    functions = {"inputs": lambda step, number: rows[0], "targets": lambda step, number: rows[0]}
    feed = MicrobatchFeed(Feed(**functions | {part: lambda step, number: rows[step]}))
    feed.configure(2, torch.float32, cached_steps=2)
    getattr(feed, part)(0, 0)
    with pytest.raises(BatchError) as refused:
        getattr(feed, part)(4, 1)
    assert re.fullmatch(
        rf"`{part}` of the Feed for microbatch 1 of step 4 raised IndexError: list index out of range, {HERE}; "
        "let it give every microbatch of every step, or train fewer steps",
        str(refused.value),
    )
    assert isinstance(refused.value.__cause__, IndexError)


def test_batches_that_raise_are_named_with_the_number_of_the_batch():
    def generate():
        yield torch.ones(2, 3), torch.ones(2)
        raise IndexError("no file")

    feed = BatchFeed(generate())
    feed.configure(1, torch.float32, cached_steps=2)
    feed.prepare(0)
    with pytest.raises(BatchError) as refused:
        feed.prepare(1)
    assert re.fullmatch(
        rf"`batches` at step 1 raised IndexError: no file, {HERE}; "
        "correct what gives the batches, or train fewer steps",
        str(refused.value),
    )
    with pytest.raises(BatchError, match="`batches` at step 1 raised IndexError"):  # for each rank of a process
        feed.prepare(1)


def test_an_optimizer_that_fails_in_a_job_is_refused(capfd):
    with pytest.raises(pp.UsageError, match=r"^`optimizer` for 2 parameters .* Invalid learning rate: -1\.0"):
        pp.train(
            [lambda: nn.Linear(3, 3)] * 2,
            [(torch.ones(4, 3), torch.ones(4, 3))],
            loss=nn.functional.mse_loss,
            optimizer=too_slow,
            depth=2,
        )
    assert not capfd.readouterr().err
