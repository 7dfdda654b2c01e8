"""A peer's process, from its parts to its end: what it starts, what it prints, and how it leaves. Imports torch."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from pipelined.actors.device.executor import Executor, TorchExecutor
from pipelined.aio.tasks import beside
from pipelined.membership.connection import LocalMember
from pipelined.membership.directory import Directory
from pipelined.membership.messaging.messages import handle_requests
from pipelined.membership.task_record import RUN
from pipelined.process.reporting.progress import Say
from pipelined.state.checkpoints.claim import Claim, claim
from pipelined.state.stages.store import DiskStore
from pipelined.state.stages.store_checks import stages_of_model, text_mismatch
from pipelined.swarm.peer.components import PeerSetup
from pipelined.swarm.peer.peer import StagePeer
from pipelined.swarm.peer.service import MAX_ROUNDS
from pipelined.swarm.peer.stage_join import Build
from pipelined.swarm.process.session import SwarmSession, raise_when_failed, unreadable_head
from pipelined.swarm.protocol.status import Status, StatusReply, traffic_of
from pipelined.swarm.records.members import PeerRecord, Phase
from pipelined.swarm.records.steps import HEAD, Head
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules
from pipelined.swarm.settings import PeerSettings
from pipelined.swarm.stages.planned_memory import stage_bytes
from pipelined.swarm.stages.torch_stage import TorchStage
from transports import Nursery
from transports.rpc import Party

OUT_OF_MEMORY = (
    "let the trainers cut the model into more stages (`depth=`), or a step into more microbatches (`microbatches=`)"
)
"""What to do where a peer has no memory left, with arguments of `pipelined.swarm.train`."""


class PeerProcess:
    """A peer with all its parts.

    Args:
        local: this process; its name is unique among the peers.
        build: builds a stage as it is before the first step.
    """

    def __init__(
        self, local: LocalMember, build: Build, rules: Rules, executor: Executor, setup: PeerSetup | None = None
    ):
        self.view = SwarmView(local.directory, local.clock, stages=frozenset())
        setup = setup or PeerSetup()
        self.peer = StagePeer(local, self.view, build, rules, executor=executor, setup=setup)
        self.name, self.grace_s, self._endpoint = local.name, setup.grace_s, local.endpoint
        self._executor = executor
        executor.configure(name=local.name)

    @property
    def address(self) -> str:
        return self._endpoint.address

    async def run(self) -> None:
        """Serve until `peer.leave()` or cancelled.

        Raises: the first error of any of its parts.
        """
        handle_requests(self._endpoint, Status, self._status, MAX_ROUNDS)
        with self._executor.doing("serving"):
            await beside(self.peer.run(), self.view.follow(), raise_when_failed(self._endpoint))

    async def _status(self, request: Status, sender: Party) -> StatusReply:
        report = self.peer.report()
        traffic = traffic_of(self._endpoint)
        return StatusReply(self.view.cut_off, traffic, peer=report, events=request.recent_events)


@asynccontextmanager
async def open_peer(
    settings: PeerSettings, local: LocalMember, session: SwarmSession, say: Say, *, remedy: str = OUT_OF_MEMORY
) -> AsyncIterator[PeerProcess]:
    """A peer with a device, and a directory of checkpoints that belongs to its swarm; it does not run yet.

    Args:
        remedy: what to do where the device has no memory left.
    Raises:
        UsageError: another model's stages are saved there, or another swarm, or a pipeline, saves there.
    """
    with ExitStack() as stack:
        store = None
        if (path := settings.checkpoint) is not None:
            saved_stages = await asyncio.to_thread(stages_of_model, path, session.identity)
            if fact := await asyncio.to_thread(text_mismatch, path, saved_stages, session.text):
                say(f"warning: {fact}")
            claim_of_path = stack.enter_context(await claim_for(local.directory, path))
            if claim_of_path.warning:
                say(f"warning: {claim_of_path.warning}")
            store = DiskStore(path, session.identity, text=session.text, name=local.name)
        executor = TorchExecutor(settings.device, local.clock)
        executor.configure(remedy=remedy)
        stack.callback(executor.close)
        setup = PeerSetup(settings.stage, settings.grace, store, settings.save_every)
        say(f"{local.name}: peer at {local.endpoint.address}, model {session.rules.digest}")
        yield torch_peer(local, session, executor, setup)


def torch_peer(local: LocalMember, session: SwarmSession, executor: Executor, setup: PeerSetup) -> PeerProcess:
    """A peer that computes with this executor.

    Where memory runs out the error names the bytes planned for its stage, and those that it keeps for other peers.

    With exact sums this sets torch's threads on the CPU to 1: with more, kernels add in another order.
    """
    if session.training.exact_sums and executor.device == "cpu":
        torch.set_num_threads(1)

    def planned_bytes(index: int) -> int:
        stage = stage_bytes(session.training, index)
        replica = process.peer.replica
        saves, on_host = setup.store is not None, executor.device == "cpu"
        nbytes = stage.most_bytes(delayed=session.rules.delayed, saves=saves, on_host=on_host)
        return nbytes + (replica.donor.nbytes if replica and on_host else 0)

    def build(index: int) -> TorchStage:
        executor.configure(owner=f"stage {index}", planned_memory=partial(planned_bytes, index))
        return TorchStage(session.training, index, executor.device)

    process = PeerProcess(local, build, session.rules, executor, setup)  # calls `build` only where it runs
    return process


async def claim_for(directory: Directory, path: Path) -> Claim:
    """Claim a directory of checkpoints for this swarm.

    Raises:
        UsageError: another swarm, or a pipeline, saves there.
    """
    entry = (await directory.read(RUN)).entries.get(RUN)
    return await asyncio.to_thread(claim, path, entry.value.decode(errors="replace") if entry else "")


async def run_peer(process: PeerProcess, stop: asyncio.Event, say: Say) -> None:
    """Run a peer until `stop` is set: then it hands its state over, and leaves.

    Args:
        say: prints the request to leave, a line whenever the state of the peer changes, and that it left.
    Raises: as `PeerProcess.run`.
    """

    async def leave() -> None:
        await stop.wait()
        say(f"{process.name}: received a request to leave (grace period: {process.grace_s:g} s)")
        process.peer.leave()

    async with Nursery() as tasks:
        log_tasks = [tasks.create_task(leave()), tasks.create_task(PeerLog(process, say).follow())]
        await process.run()
        for task in log_tasks:
            task.cancel()
    say(f"{process.name}: left")


@dataclass(frozen=True)
class PeerLog:
    """What one peer does: its record in the directory, and why it cannot continue."""

    process: PeerProcess
    say: Say

    async def follow(self) -> None:
        """Log every change, until cancelled."""
        view, name = self.process.view, self.process.name
        await view.wait_for(lambda: view.revision > 0 or view.cut_off)
        last_text, is_leaving = "", False
        while True:
            record = view.peers.get(name)
            is_leaving = record.phase == Phase.LEAVING if record else is_leaving
            text = (
                self._describe(record) if record or not is_leaving else last_text
            )  # its record ends before its process
            if text != last_text:
                self.say(f"{name}: {text}")
            last_text = text
            await view.next_change()

    def _describe(self, record: PeerRecord | None) -> str:
        view = self.process.view
        if view.cut_off:
            return "the directory does not reply; this peer serves passes, but applies no step until it replies"
        if view.head is None and HEAD in view.unreadable:
            return unreadable_head(view.unreadable[HEAD])
        if view.head is None:
            return "waits for a trainer that begins"
        if record and record.address != self.process.address:
            return f"waits for its name, which another process has (at {record.address}), until that one's lease ends"
        if record is None and view.leader is None:
            return "waits for a leader, which assigns it a stage"
        return self._describe_at_stage(record, view.head) if record else "asks the leader for a stage"

    def _describe_at_stage(self, record: PeerRecord, head: Head) -> str:
        if record.phase != Phase.JOINING:
            activities = {
                Phase.SERVING: "serves",
                Phase.DRAINING: "drains: serves until another peer has its state or its grace period ends",
                Phase.LEAVING: "hands over, and leaves",
            }
            return f"stage {record.stage}: {activities[Phase(record.phase)]}"
        if not self.process.view.peers_with(record.stage) and (head.step or head.was_summed):
            return f"stage {record.stage}: waits for a peer that has its state, or a checkpoint"
        error = self.process.peer.last_fetch_error
        failure_text = f" (the last try failed: {error})" if error else ""
        return f"stage {record.stage}: fetches its state{failure_text}"
