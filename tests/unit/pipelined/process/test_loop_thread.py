"""What runs an event loop also runs where one is running already, and Ctrl-C ends it there."""

import asyncio
import os
import signal

import pytest

from pipelined.process.launch import ALONE
from pipelined.process.loop_thread import outside_of_a_loop
from pipelined.process.run import run


def test_an_interruption_beside_a_running_loop_ends_the_work_in_its_thread(capsys):
    """As in a notebook, where the training went on to its last step."""
    ended = []

    async def interrupt(transport):
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(transport.rank)

    async def cell():
        return outside_of_a_loop(lambda: run(ALONE, 1, interrupt))

    loop = asyncio.new_event_loop()
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(cell())
    loop.close()
    assert ended == [0]
    assert capsys.readouterr().err == ""


def test_an_error_of_the_work_has_no_error_of_asyncio_before_it():
    """A user read first of a loop that does not run, and then of the own error."""

    def fail():
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as failed:
        outside_of_a_loop(fail)
    assert failed.value.__context__ is None
