"""All ranks in one process: one message, one exit code, whatever happens on one of them."""

import os
import signal

import pytest

from pipelined.actors.agree import agree
from pipelined.errors import UsageError
from pipelined.process import refusal
from pipelined.process.launch import ALONE, Launch
from pipelined.process.refusal import refuse
from pipelined.process.reporting import events
from pipelined.process.run import run
from tests.conformance.worlds import kill

RANKS = 3


async def forever(transport):
    """What a healthy rank does: it waits for the next."""
    await transport.receive((transport.rank + 1) % RANKS, ("never",))


def on_rank_1(act):
    """A program in which rank 1 does something else than the others."""

    async def program(transport):
        await (act(transport) if transport.rank == 1 else forever(transport))
        return 0

    return program


def outcome(capsys, program, **more):
    code = run(ALONE, RANKS, program, **more)
    return code, capsys.readouterr().err


def test_a_program_that_ends_well_says_nothing(capsys):
    async def program(transport):
        return 0

    assert outcome(capsys, program) == (0, "")


def test_a_failure_is_reported_once_with_where_it_happened_and_why(capsys):
    async def fail(transport):
        events.warn("sum goes uncoded", stage=1)
        try:
            raise KeyError("weight")
        except KeyError as cause:
            raise ArithmeticError("rank 1: the sum is off") from cause

    code, said = outcome(capsys, on_rank_1(fail))
    assert code == 1
    assert said.splitlines()[0] == "rank 1: the sum is off"
    assert "in fail" in said and "KeyError: 'weight'" in said
    assert said.count("ArithmeticError: rank 1") == 1
    assert said.endswith("sum goes uncoded: stage=1\n") and "last events:" in said


def test_a_rank_that_waits_for_a_lost_one_names_it_its_stages_and_its_last_message(capsys):
    async def die(transport):
        await transport.send(0, ("gradient", 4, 0, 1, 2))
        kill(transport)

    async def program(transport):
        if transport.rank == 0:
            await transport.receive(1, ("gradient", 4, 0, 1, 2))
        await (die(transport) if transport.rank == 1 else forever(transport))
        return 0

    code, said = outcome(capsys, program, stages_of=lambda rank: [rank, 7])
    assert code == 1
    last = "last heard from it: gradient of microbatch 2 (step 4, pipe 0, stage 1)"
    assert f"rank 0: lost rank 1 (stages 1, 7): it was killed; {last}" in said
    assert "rank 2:" not in said.replace("lost rank 2", ""), "rank 2 waits for rank 0, which told it"


def test_a_mistake_that_one_rank_finds_is_reported_by_rank_0_and_ends_all_with_2(capsys):
    async def refuse_it(transport):
        raise UsageError("too many cooks (cooks: 3); send two home")

    told = "error: too many cooks (cooks: 3); send two home\n"
    assert outcome(capsys, on_rank_1(refuse_it)) == (2, told)
    assert outcome(capsys, on_rank_1(refuse_it), command="python -m cook") == (2, f"python -m cook: {told}")


def test_a_mistake_that_all_ranks_find_is_reported_once(capsys):
    async def program(transport):
        raise UsageError("no flour; buy some")

    assert outcome(capsys, program) == (2, "error: no flour; buy some\n")


@pytest.mark.parametrize("kind", [UsageError, OSError])
def test_a_mistake_agreed_on_is_that_of_the_lowest_rank(capsys, kind):
    async def work(rank):
        if rank:
            raise kind(f"rank {rank} has none")
        return "some"

    async def program(transport):
        return await agree(transport, "flour", work(transport.rank))

    assert outcome(capsys, program) == (2, "error: rank 1: rank 1 has none\n")


def test_what_all_ranks_can_do_together_is_done():
    async def number(rank):
        return rank

    async def program(transport):
        return await agree(transport, "number", number(transport.rank))

    assert run(ALONE, RANKS, program) == RANKS - 1, "the highest of the ranks' codes"


def test_an_interruption_ends_all_with_130(capsys):
    async def interrupt(transport):
        os.kill(os.getpid(), signal.SIGINT)
        await forever(transport)

    assert outcome(capsys, on_rank_1(interrupt)) == (130, "")


def test_a_transport_that_cannot_be_opened_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(refusal, "wait_for_refusals", lambda rank, ranks, patience: {*range(ranks)})

    async def program(transport):
        return 0

    assert run(Launch("smoke://", 0, 1, "nobody"), 1, program) == 2
    assert "unknown transport 'smoke://'" in capsys.readouterr().err
    assert refuse(UsageError("no"), Launch("mpi://", 1, 2, "mpirun")) == 2
    assert capsys.readouterr().err == "", "rank 1 leaves it to rank 0"
