"""`pp.swarm`: serve, train, or run a whole swarm in this process, with a user's own model."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from pipelined.aio.clock import RealClock
from pipelined.api.data.feed import Feed
from pipelined.api.swarm.parties import SwarmSettings, TrainerOptions, run_user_peer, run_user_trainer
from pipelined.api.swarm.training import UserProgram, UserTraining
from pipelined.api.user_optimizer import OptimizerBuilder, SchedulerBuilder, UserOptimizer
from pipelined.api.whole_run import Trained
from pipelined.errors import JobFailed, UsageError
from pipelined.membership.addresses import check_directory_url
from pipelined.membership.connection import endpoint_at
from pipelined.membership.directory import CutOff, DirectoryRefusal, serve_directory
from pipelined.membership.directory.limits import refuse_name
from pipelined.process.exit import FAILED, print_to_stderr
from pipelined.process.loop_thread import interruptible, outside_of_a_loop
from pipelined.process.refusal import error_message
from pipelined.process.reporting.progress import Say, say_nothing
from pipelined.process.stop_request import StopRequest
from pipelined.process.uncaught import UncaughtErrors
from pipelined.swarm.peer.device_watchdog import DeviceStalled
from pipelined.swarm.process.roles import Stopped
from pipelined.swarm.process.session import SwarmAddress
from pipelined.swarm.settings import PeerSettings, SharedSettings, TrainerSettings
from pipelined.training.models.batch import Batch
from pipelined.training.models.sequential import Loss
from pipelined.training.models.user_model import Layers
from pipelined.training.segments.step_report import StepReport
from transports import Nursery, new_event_loop

T = TypeVar("T")
COMMAND = "pipelined.swarm"
LOOPBACK = "tcp://127.0.0.1:0"


def serve(
    model: Layers,
    *,
    loss: Loss,
    optimizer: OptimizerBuilder,
    coordinator: str,
    lr_scheduler: SchedulerBuilder | None = None,
    stage: int | None = None,
    device: str = "cpu",
    checkpoint: str | os.PathLike[str] | None = None,
    save_every: int = PeerSettings.save_every,
    grace: float = PeerSettings.grace,
    listen: str | None = None,
    name: str = "",
    say: Say = print,
) -> None:
    """Serve a stage of a swarm until a stop request (SIGTERM): then hand the state to another peer, and return.

    The process joins at any time, fetches the state of its stage from another peer, and may be killed at any time. It
    reads from the directory what is trained, and how. Model, loss and optimizer must be those of the trainers.

    Args:
        model, loss, optimizer, lr_scheduler: as in `pipelined.train`.
        coordinator: address of the directory, which `python -m pipelined directory` prints: tcp://HOST:PORT.
        stage: which stage to serve; None: where it helps most.
        device: where to compute: "cpu", "cuda:0", ...
        checkpoint: directory to save the stage in and to load it from; other peers may share it.
        save_every: steps from one save to the next, the same for all peers; 0: at the end, by a stage's last peer.
        grace: seconds that the last peer of a stage keeps serving after a stop request, until another has its state.
        listen: URL at which this process listens; None: where this machine reaches the directory from.
        name: unique name of this process; default: HOST-PID.
        say: called with a line whenever the state of this peer changes.
    Raises:
        UsageError: the user can correct something.
        JobFailed: the directory does not reply, or the device stalls; the message is printed.
    """
    program = _user_program(model, loss, optimizer, lr_scheduler)
    path = None if checkpoint is None else Path(checkpoint)
    with _refusals():
        address = _address(coordinator, listen, name)
        (settings := PeerSettings(stage, device, path, save_every, grace)).check_peer()
    _run(lambda stop: run_user_peer(partial(UserTraining, program), address, settings, stop=stop, say=say))


def train(
    model: Layers, batches: Iterable[Batch] | Feed, *, loss: Loss, optimizer: OptimizerBuilder,
    coordinator: str, depth: int, microbatches: int | None = None, steps: int | None = None,
    dtype: torch.dtype = torch.float32, autocast: bool = False, seed: int = 0,
    clip: float = 0.0, lr_scheduler: SchedulerBuilder | None = None,
    compress: str = SharedSettings.compress, compress_sums: str = SharedSettings.compress_sums,
    lease: float = SharedSettings.lease, rebalance: float = SharedSettings.rebalance, exact_sums: bool = False,
    slots: int = TrainerSettings.slots, resume: bool = False, listen: str | None = None, name: str = "",
    report: Callable[[StepReport], None] = lambda report: None, say: Say = print,
) -> Trained:  # fmt: skip
    """Train a model in a swarm: this process sends microbatches through the peers, and holds no parameters meanwhile.

    Peers (`serve`) may come, leave and be killed at any time; each step's result is that of one process that computes
    the same microbatches. Several trainers may run with the same arguments.

    Args:
        model, batches, loss, optimizer, dtype, autocast, seed, lr_scheduler: as in `pipelined.train`. After a rollback
            `batches` is read from the beginning, which a generator cannot.
        coordinator: address of the directory, which `python -m pipelined directory` prints: tcp://HOST:PORT.
        depth: the stages that the model is cut into; each needs a peer.
        microbatches: microbatches of a step; default: twice the depth.
        steps: the steps to train; default: as many as there are batches.
        clip: the largest norm of the mean gradient; 0 does not clip.
        compress: the codec of tensors between stages; `compress_sums` that of the sums of gradients.
        lease: seconds without a heartbeat after which a member is removed.
        rebalance: seconds between two comparisons of the stages' loads; 0: peers stay at their stages.
        exact_sums: sum gradients exactly, so that the parameters have the same bits with any number of peers and
            trainers, whichever of them fail. Each peer computes with one thread.
        slots: microbatches under way at once.
        resume: begin at the latest step that peers saved of all stages, and wait for such peers.
        listen, name, say: as in `serve`.
        report: called with the report of each step.
    Returns: losses and state. The state is fetched from the peers at the end; None after a stop request.
    Raises:
        UsageError, JobFailed: as in `serve`.
    """
    program = _user_program(model, loss, optimizer, lr_scheduler)
    with _refusals():
        address = _address(coordinator, listen, name)
        options = TrainerOptions(slots, resume, report)
        settings = SwarmSettings(
            depth=depth, microbatches=microbatches, steps=steps, dtype=dtype, autocast=autocast, seed=seed, clip=clip,
            compress=compress, compress_sums=compress_sums, lease=lease, rebalance=rebalance, exact_sums=exact_sums,
        )  # fmt: skip
        data, training = settings.prepare(batches, program)
    return _run(lambda stop: run_user_trainer(training, data, address, options, stop=stop, say=say)) or Trained(
        stopped=True
    )


def local(
    model: Layers, batches: Iterable[Batch] | Feed, *, loss: Loss, optimizer: OptimizerBuilder,
    depth: int, peers: int | None = None, microbatches: int | None = None, steps: int | None = None,
    dtype: torch.dtype = torch.float32, autocast: bool = False, seed: int = 0,
    clip: float = 0.0, lr_scheduler: SchedulerBuilder | None = None,
    compress: str = SharedSettings.compress, compress_sums: str = SharedSettings.compress_sums,
    lease: float = SharedSettings.lease, rebalance: float = SharedSettings.rebalance, exact_sums: bool = False,
    slots: int = TrainerSettings.slots,
    report: Callable[[StepReport], None] = lambda report: None, say: Say = say_nothing,
) -> Trained:  # fmt: skip
    """Train in a whole swarm inside this process: a directory, peers and a trainer, over TCP on this machine.

    Args:
        peers: the peers to start; default: two for each stage. The other arguments are those of `train`.
    Returns: losses and state.
    Raises:
        UsageError, JobFailed: as in `serve`.
    """
    program = _user_program(model, loss, optimizer, lr_scheduler)
    peers = 2 * depth if peers is None else peers
    with _refusals():
        if peers < depth:
            raise UsageError(f"every stage needs a peer (peers: {peers}, depth: {depth}); start more peers")
        options = TrainerOptions(slots, report=report)
        settings = SwarmSettings(
            depth=depth, microbatches=microbatches, steps=steps, dtype=dtype, autocast=autocast, seed=seed, clip=clip,
            compress=compress, compress_sums=compress_sums, lease=lease, rebalance=rebalance, exact_sums=exact_sums,
        )  # fmt: skip
        data, training = settings.prepare(batches, program)

    async def work(stop: asyncio.Event) -> Trained:
        async with await endpoint_at(LOOPBACK) as endpoint, Nursery() as tasks:
            serving = tasks.create_task(serve_directory(endpoint, RealClock()))
            addresses = [SwarmAddress(endpoint.address, name=f"peer{n}") for n in range(peers)]
            stays = asyncio.Event()
            peer_tasks = [
                tasks.create_task(run_user_peer(lambda task: training, address, PeerSettings(), stop=stays, say=say))
                for address in addresses
            ]
            address = SwarmAddress(endpoint.address, name="trainer")
            result = await run_user_trainer(training, data, address, options, stop=stop, say=say)
            for task in peer_tasks:
                task.cancel()
            await asyncio.wait(peer_tasks)  # each revokes its lease, so the directory ends after them
            serving.cancel()
        return result

    return _run(work) or Trained(stopped=True)


def _user_program(
    model: Layers, loss: Loss, optimizer: OptimizerBuilder, lr_scheduler: SchedulerBuilder | None
) -> UserProgram:
    return UserProgram(model, loss, partial(UserOptimizer, optimizer, scheduler=lr_scheduler))


def _address(coordinator: str, listen: str | None, name: str) -> SwarmAddress:
    check_directory_url(coordinator, "coordinator")
    refuse_name("name", name)
    return SwarmAddress(coordinator, listen, name)


@contextmanager
def _refusals() -> Iterator[None]:
    """A block that raises a UsageError where the user can correct an error, and JobFailed for others, once printed."""
    with UncaughtErrors(COMMAND, None):
        try:
            yield
        except DirectoryRefusal as error:
            raise UsageError(str(error)) from error
        except (CutOff, DeviceStalled) as error:
            print_to_stderr(error_message(error, COMMAND))
            raise JobFailed(str(error), FAILED) from error


def _run(work: Callable[[asyncio.Event], Coroutine[Any, Any, T]]) -> T | None:
    """Run a process of a swarm until it ends; a stop request sets the event. None: it was stopped before it joined.

    It runs in a thread of its own where a loop is running already, as in a notebook.
    """
    request = StopRequest()

    async def main() -> T | None:
        stop = asyncio.Event()
        result = None

        async with Nursery() as tasks:
            stopping = tasks.create_task(request.set(stop))
            with suppress(Stopped):
                result = await work(stop)
            stopping.cancel()
        return result

    def start() -> T | None:
        with _refusals(), asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(interruptible(main()))

    is_main = threading.current_thread() is threading.main_thread()
    with request.listening() if is_main else nullcontext():
        return outside_of_a_loop(start)
