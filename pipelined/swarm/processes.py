"""The two kinds of processes of a swarm: what each of them starts, and how it ends."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from pipelined.actors.executor import Device
from pipelined.aio.clock import Clock
from pipelined.aio.nursery import Nursery
from pipelined.directory import CutOff, Directory, LeaseLost
from pipelined.directory.registration import registered
from pipelined.membership.client import Asking
from pipelined.membership.records import TRAINERS, Trainer
from pipelined.membership.view import RETRY_S
from pipelined.state.store import CheckpointStore
from pipelined.swarm.config import OtherModel, Rules
from pipelined.swarm.leader.evaluation import due
from pipelined.swarm.leader.leader import Leader
from pipelined.swarm.leader.rebalance import Moves, moves
from pipelined.swarm.leader.recovery import Rollback
from pipelined.swarm.peer.lifecycle import GRACE_S
from pipelined.swarm.peer.peer import Build, StagePeer
from pipelined.swarm.peer.service import events_asked_for
from pipelined.swarm.placement import PLACE
from pipelined.swarm.records import Head
from pipelined.swarm.stages.codec import Coding
from pipelined.swarm.trainer.routing import Wiring
from pipelined.swarm.trainer.trainer import Data, SwarmTrainer
from pipelined.swarm.view import SwarmView
from transports.rpc import Endpoint, Request, Response


class PeerProcess:
    """A peer with all its parts.

    Args:
        name: unique in this swarm.
        build: builds a stage as it is before the first step.
        stage: which to hold; None: the leader decides.
        threads: whether the loop has threads to code tensors and to save in.
        store, save_every: where states are saved, and every how many steps; see `StagePeer`.
        grace_s: seconds that it continues to serve after a notice, if it is the last of its stage.
    """

    def __init__(
        self,
        name: str,
        build: Build,
        rules: Rules,
        endpoint: Endpoint,
        directory: Directory,
        clock: Clock,
        device: Device,
        stage: int | None = None,
        threads: bool = True,
        store: CheckpointStore | None = None,
        save_every: int = 0,
        grace_s: float = GRACE_S,
    ):
        self.view = SwarmView(directory, clock, stages=frozenset())
        coding = Coding(rules.codec, threads)
        self.peer = StagePeer(
            name, build, rules, endpoint, self.view, clock, device, coding, stage, store, save_every, grace_s
        )
        self._endpoint = endpoint

    async def run(self) -> None:
        """Serve until `peer.leave()` or cancelled.

        Raises: the first error of any of its parts.
        """
        await _beside(self.peer.run(), self.view.follow(), _failure(self._endpoint))


class TrainerProcess:
    """A trainer with all its parts; it leads the swarm while no other trainer leads.

    Args:
        data: finds a microbatch by its name.
        slots: microbatches in progress at once.
        resume: whether to lead on from what any run saved; else only from what this run saved, if a stage is lost.
        steps: number of steps after which the run is over; None: never.
    """

    def __init__(
        self,
        name: str,
        data: Data,
        rules: Rules,
        endpoint: Endpoint,
        directory: Directory,
        clock: Clock,
        slots: int = 4,
        steps: int | None = None,
        balance: Moves | None = None,
        resume: bool = False,
    ):
        self.name, self._rules, self._steps = name, rules, steps
        self._endpoint, self._directory, self._clock = endpoint, directory, clock
        self.view = SwarmView(directory, clock)
        asking = Asking(endpoint, self.view)
        rollback = Rollback(self.view, rules.stages, rules.lease_s, clock, resume)
        self.leader = Leader(
            name,
            endpoint.address,
            self.view,
            asking,
            rules=rules,
            clock=clock,
            moves=balance or moves,
            rollback=rollback,
            steps=steps,
        )
        wiring = Wiring(rules.stages, seed=name)
        self.trainer = SwarmTrainer(
            name,
            rules.stages,
            data,
            endpoint,
            self.view,
            clock=clock,
            wiring=wiring,
            slots=slots,
            lease_s=rules.lease_s,
        )

    async def run(self) -> None:
        """Train until the last step is committed, or cancelled.

        Raises:
            OtherModel: the swarm trains another model. Else the first error of any of its parts.
        """
        self._endpoint.handle("work", self.leader.work)
        self._endpoint.handle(PLACE, self.leader.place)
        self._endpoint.handle("status", self._status)
        await _beside(self._over(), self.view.follow(), self._live(), _failure(self._endpoint))

    @property
    def is_over(self) -> bool:
        """Whether the last step is committed, and evaluated if an evaluation is due."""
        head = self.view.head
        return head is not None and self._steps is not None and head.step >= self._steps and not self.is_to_evaluate()

    def is_to_evaluate(self, head: Head | None = None) -> bool:
        """Whether the parameters of a head must still be measured on validation data.

        Args:
            head: None: the directory's head.
        """
        return due(head or self.view.head, self.view.evaluated, self._rules, self._steps)

    async def _status(self, request: Request) -> Response:
        left, unscored = self.leader.left, self.leader.unscored
        leading = {"leads": left is not None, "left": left, "unscored": unscored, **self.leader.progress}
        unheard = {"rejected": dict(self._endpoint.rejected), "refused": dict(self._endpoint.refused)}
        told = {**self.trainer.status(), **leading, **unheard, "cut_off": self.view.cut_off}
        return Response(note={**told, **events_asked_for(request)})

    async def _over(self) -> None:
        view = self.view
        await view.wait_for(lambda: view.head is not None)
        if view.head.model != self._rules.digest:
            raise OtherModel(self._rules.digest, view.head.model)
        await view.wait_for(lambda: self.is_over)

    async def _live(self) -> None:
        key, seconds = TRAINERS + self.name, self._rules.lease_s
        address, digest = self._endpoint.address, self._rules.digest
        while True:
            try:
                async with registered(self._directory, key, seconds, self._clock, address) as place:
                    await place.put(Trainer(self.name, address, place.incarnation, digest))
                    async with Nursery() as tasks:
                        tasks.create_task(self.leader.run(place))
                        tasks.create_task(self.trainer.run(place.incarnation))
            except (LeaseLost, CutOff):
                await self._clock.sleep(RETRY_S)


async def _failure(endpoint: Endpoint) -> None:
    await asyncio.shield(endpoint.failed)


async def _beside(main: Coroutine[Any, Any, None], *others: Coroutine[Any, Any, None]) -> None:
    """Run `main`, and the others beside it until it ends; then cancel them.

    Raises: the first error of any.
    """
    async with Nursery() as tasks:
        beside = [tasks.create_task(other) for other in others]
        await main
        for task in beside:
            task.cancel()
