"""The tape walks back what it has read, on all ranks alike."""

import asyncio
import contextlib
import threading

import pytest
import torch

from pipelined.actors.device import executor
from pipelined.actors.device.executor import TorchExecutor
from pipelined.aio.clock import RealClock
from pipelined.sharding import Mesh, Shards
from pipelined.sharding.operators.tape import Tape
from pipelined.sharding.operators.verbs import Value
from pipelined.sharding.shared_memory import StartedMove
from tests.unit.pipelined.sharding.operators.ranks import normal, tapes

MESH = Mesh("a=2")
SPLIT, WHOLE = Shards(MESH, (4,), "S0:a"), Shards(MESH, (4,), "B")


def rank_value():
    return Value(normal(2), SPLIT)


async def test_a_value_that_is_used_twice_has_the_sum_of_both_gradients():
    async def work(tape):
        x = rank_value()
        y = await tape.compute("square", torch.square, x, result=SPLIT)
        z = await tape.compute("add", torch.add, x, y, result=SPLIT)
        await tape.backward(z, torch.ones(2))
        assert torch.equal(x.gradient, 1 + 2 * x.array)

    await tapes(2, lambda tape: tape.run(work(tape)))


async def test_a_rank_without_a_part_in_the_result_still_takes_part_in_the_gradients_move():
    """Else the other rank would wait for it for ever."""

    async def work(tape):
        x = rank_value()
        gathered = await tape.move(x, WHOLE)
        ignores = tape.rank == 1
        z = await tape.compute("some", lambda x: torch.zeros(4) if ignores else x * 3, gathered, result=WHOLE)
        await tape.backward(z, torch.ones(4, dtype=torch.float64))
        assert torch.equal(x.gradient, torch.full((2,), 3.0, dtype=torch.float64))

    await tapes(2, lambda tape: tape.run(work(tape)))


async def test_a_constant_and_what_is_not_trained_keep_nothing():
    async def work(tape):
        x = rank_value()
        y = await tape.compute("square", torch.square, x, result=SPLIT, constant=True)
        z = await tape.compute("cube", lambda y: y**3, y, result=SPLIT)
        assert not y.trained and not z.trained and not list(tape.values())

    await tapes(2, lambda tape: tape.run(work(tape)))


async def test_a_result_of_another_shape_is_refused_with_its_rank():
    async def work(tape):
        if tape.rank == 1:
            with pytest.raises(ValueError, match=r"sum gave another shape \(rank: 1, got: \(\), layout's: \(2,\)\)"):
                await tape.compute("sum", torch.sum, rank_value(), result=SPLIT)

    await tapes(2, lambda tape: tape.run(work(tape)))


@pytest.mark.parametrize("use", ["a second computation", "a move"])
async def test_a_tensor_that_is_freed_after_its_use_is_used_once(use):
    async def work(tape):
        gathered = await tape.move(rank_value(), WHOLE, regather=True)
        await tape.compute("square", torch.square, gathered, result=WHOLE)
        fact = rf"{use} takes a tensor that was freed after its first use \(rank: {tape.rank}\)"
        with pytest.raises(RuntimeError, match=fact):
            if use == "a move":
                await tape.move(gathered, SPLIT)
            else:
                await tape.compute(use, torch.square, gathered, result=WHOLE)

    await tapes(2, lambda tape: tape.run(work(tape)))


class Carries:
    """A network of one rank: what is moved is a copy; it notes the thread of each move, and may fail."""

    rank = 0

    def __init__(self, error=None):
        self.error, self.threads = error, []

    def start(self, path, array):
        return None

    async def carry(self, path, array):
        self.threads.append(threading.get_ident())
        if self.error:
            raise self.error
        return torch.cat([array, array])


@contextlib.contextmanager
def on_a_thread(network):
    device = TorchExecutor("cpu", RealClock())
    try:
        yield Tape(network, device)
    finally:
        device.close()


async def test_a_stage_runs_in_the_devices_thread_and_its_moves_in_the_loop():
    threads = []

    def work(x):
        threads.append(threading.get_ident())
        return x

    async def stage(tape):
        x = await tape.compute("before", work, rank_value(), result=SPLIT)
        x = await tape.move(x, WHOLE)
        threads.append(threading.get_ident())
        return await tape.compute("after", work, x, result=WHOLE)

    network = Carries()
    with on_a_thread(network) as tape:
        await tape.run(stage(tape))
    assert len(set(threads)) == 1 and network.threads == [threading.get_ident()]
    assert set(threads).isdisjoint(network.threads)


class Starts(Carries):
    """A network that begins every move in the thread that asks; each number of them is done at once."""

    def __init__(self, *at_once):
        super().__init__()
        self.at_once, self.begun, self.finished = [*at_once], [], []

    def start(self, path, array):
        self.begun.append(threading.get_ident())
        doubled = torch.cat([array, array])
        return Begun(doubled if self.at_once.pop(0) else None, doubled)

    async def finish(self, move):
        self.finished.append(threading.get_ident())
        return move.later


class Begun(StartedMove):
    def __init__(self, moved, later):
        self.moved, self.later, self.error = moved, later, None

    def abandon(self, error):
        self.error = error


@pytest.mark.parametrize(("at_once", "pieces"), [((True, True, True), 1), ((True, False, True), 2)])
async def test_moves_that_are_done_at_once_take_no_hand_over(at_once, pieces):
    async def stage(tape):
        x = rank_value()
        for _ in range(3):
            x = await tape.move(await tape.compute("same", torch.clone, x, result=SPLIT), WHOLE)
            x = await tape.compute("half", lambda x: x[:2], x, result=SPLIT)
        return x

    network = Starts(*at_once)
    with on_a_thread(network) as tape:
        tape.queue.ran = count = []
        run = tape.queue.run
        tape.queue.run = lambda op, work: (count.append(op), run(op, work))[1]
        assert (await tape.run(stage(tape))).array.tolist() == rank_value().array.tolist()
    assert len(count) == pieces and not network.threads
    assert set(network.begun).isdisjoint({threading.get_ident()})
    assert network.finished == [threading.get_ident()] * (pieces - 1)


async def test_a_failed_move_ends_the_stage_with_its_error():
    ended = []

    async def stage(tape):
        try:
            await tape.move(rank_value(), WHOLE)
        finally:
            ended.append(True)

    with on_a_thread(Carries(OSError("the peer is gone"))) as tape, pytest.raises(OSError, match="the peer is gone"):
        await tape.run(stage(tape))
    assert ended


async def test_a_cancelled_stage_that_still_computes_is_left_to_its_thread(monkeypatch):
    monkeypatch.setattr(executor, "PATIENCE_S", 0.0)
    started, go, ended = threading.Event(), threading.Event(), threading.Event()

    async def stage(tape):
        await tape.compute("long", lambda x: (started.set(), go.wait(30))[0] or x, rank_value(), result=SPLIT)
        ended.set()

    with on_a_thread(Carries()) as tape:
        task = asyncio.ensure_future(tape.run(stage(tape)))
        await asyncio.to_thread(started.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()
        assert await asyncio.to_thread(ended.wait, 30)


async def cancelled_at(network, stage, reached, go):
    """Run a stage on a thread, cancel it where the thread waits, and let the thread go on."""
    with on_a_thread(network) as tape:
        task = asyncio.ensure_future(tape.run(stage(tape)))
        await asyncio.to_thread(reached.wait, 30)
        task.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_cancelled_stage_begins_no_further_move_in_its_thread():
    started, go = threading.Event(), threading.Event()

    async def stage(tape):
        await tape.compute("long", lambda x: (started.set(), go.wait(30))[0] or x, rank_value(), result=SPLIT)
        while True:
            await tape.move(rank_value(), WHOLE)

    network = Starts(*[True] * 1000)
    await cancelled_at(network, stage, started, go)
    assert not network.begun


async def test_a_move_that_is_begun_when_its_stage_is_cancelled_is_abandoned():
    began, go = threading.Event(), threading.Event()
    move = Begun(None, None)

    async def stage(tape):
        await tape.move(rank_value(), WHOLE)

    network = Carries()
    network.start = lambda path, array: (began.set(), go.wait(30), move)[-1]
    await cancelled_at(network, stage, began, go)
    assert isinstance(move.error, asyncio.CancelledError)
