"""A peer: holds one stage. It requests a stage, fetches its state, serves it, moves to other stages, and drains.

The time under one lease is a *registration*. When the lease is lost, the peer registers again by itself and keeps its
state. Only the directory's head decides what the peer does to its parameters.
"""

import asyncio
from contextlib import AsyncExitStack, suppress

from pipelined.actors.device.executor import Executor
from pipelined.membership.connection import LocalMember
from pipelined.membership.directory import CutOff, LeaseLost
from pipelined.membership.registration import Registration, registered
from pipelined.membership.view import RETRY_S, NoLongerValid
from pipelined.process.reporting.events import shorten, warn
from pipelined.swarm.peer.components import PeerComponents, PeerSetup
from pipelined.swarm.peer.device_watchdog import DeviceLate
from pipelined.swarm.peer.lifecycle import Drain, PeerEvent, PeerEvicted, PeerState, Readmission, state_after
from pipelined.swarm.peer.replica import Replica, catch_up, split_by_last_step
from pipelined.swarm.peer.service import PeerService
from pipelined.swarm.peer.stage_join import Build, StageJoin
from pipelined.swarm.protocol.status import PeerReport, Status
from pipelined.swarm.records.members import PEERS, Phase, choose_saver
from pipelined.swarm.records.steps import Head
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules
from transports import Nursery
from transports.rpc import Rejected


class StagePeer:
    """One peer of a swarm.

    Args:
        local: this process; its name is unique among the peers.
        build: builds a stage.
    """

    def __init__(
        self, local: LocalMember, view: SwarmView, build: Build, rules: Rules, *, executor: Executor, setup: PeerSetup
    ):
        components = PeerComponents.of(local, view, rules, executor, setup)
        self.name = local.name
        self._rules = rules
        self._view = view
        self._endpoint, self._clock = local.endpoint, local.clock
        self._watchdog, self._client, self._saver = components.watchdog, components.probe.client, components.saver
        self._presence = components.presence
        self._service = PeerService(components)
        self._join = StageJoin(components, build, setup.stage)
        self._readmission = Readmission(local.name, view, local.clock, rules.lease_s)
        self._drain = Drain(local.name, view, local.clock, setup.grace_s)
        self._state = PeerState.OUTSIDE

    @property
    def replica(self) -> Replica | None:
        """The replica that it serves now; None: it serves no stage."""
        return self._service.replica

    @property
    def last_fetch_error(self) -> str:
        """Why the last fetched state did not come from the peer that was requested first; "": it did."""
        return self._join.fetch.last_error if self._join.fetch else ""

    def report(self) -> PeerReport:
        """What this peer does, for status."""
        replica = self.replica
        donor = self._join.fetch.donor if self._join.fetch else ""
        return PeerReport(replica.report() if replica else None, shorten(self._saver.failure), donor)

    async def run(self) -> None:
        """Serve under one lease after another, until it has left.

        Raises:
            OtherModel: the swarm trains another model. DeviceStalled: the device makes no progress.
            NameTaken: another process of the swarm has this peer's name.
        """
        self._service.open()
        async with Nursery() as self._tasks:
            watch_task = self._tasks.create_task(self._watchdog.watch())
            while not self._drain.is_requested or (self.replica and self._drain.remaining_s > 0):
                try:
                    await self._readmission.stay_away(self._is_needed)
                    async with AsyncExitStack() as stack:
                        if (registration := await self._acquire_lease(stack)) is not None:
                            self._apply_event(PeerEvent.LISTED)
                            stack.callback(self._apply_event, PeerEvent.UNLISTED)
                            await self._run_registration(registration)
                except (LeaseLost, CutOff) as error:
                    warn("membership lost", peer=self.name, why=str(error) or type(error).__name__)
                    await self._clock.sleep(RETRY_S)
                except PeerEvicted:
                    warn("evicted", peer=self.name, why="the leader could not reach it, or sums with it failed")
                    await self._readmission.wait_for_step(self._is_needed)
            self._apply_event(PeerEvent.ENDED)
            watch_task.cancel()

    def leave(self) -> None:
        """Drain (after a preemption notice); the last peer of a stage waits for another, see `Drain`."""
        self._drain.request()

    async def _acquire_lease(self, stack: AsyncExitStack) -> Registration | None:
        """Wait for a lease and for the name; None: it is to leave, and has nothing to hand over."""
        key = PEERS + self.name
        seconds = self._rules.lease_s
        address = self._endpoint.address
        with suppress(NoLongerValid):
            async with self._view.while_holds(lambda: bool(self.replica) or not self._drain.is_requested):
                waiting = registered(self._view.directory, key, seconds, self._clock, address)
                return await stack.enter_async_context(waiting)
        return None

    async def _run_registration(self, registration: Registration) -> None:
        """Raises LeaseLost; PeerEvicted: the directory has no record of this peer any more."""
        try:
            member = self._view.while_holds(lambda: self._readmission.is_member(registration))
            async with member as scope, Nursery() as tasks:
                leave_task = tasks.create_task(self._leave_in_time(scope))
                await self._serve_stage(registration)
                leave_task.cancel()
        except NoLongerValid:
            if not self._readmission.is_member(registration):
                await self._readmission.raise_why_gone(registration)
            if self._drain.remaining_s > 0:
                raise

    async def _leave_in_time(self, scope: asyncio.Timeout) -> None:
        """When the grace period ends, leave, unless the device still makes progress with the remaining work."""
        await self._view.wait_for(lambda: self._drain.is_requested)
        await self._clock.sleep(self._drain.remaining_s)
        with suppress(DeviceLate):
            await self._watchdog.unless_late(asyncio.Event().wait())
        scope.reschedule(asyncio.get_running_loop().time())

    def _is_needed(self) -> bool:
        """Whether an evicted peer must join again at once, or leave.

        A process without a replica is needed if any stage is lost.
        """
        is_lost = not self._view.serving(self.replica.index) if self.replica else bool(self._view.lost_stages)
        return self._drain.is_requested or is_lost

    async def _serve_stage(self, registration: Registration) -> None:
        """Hold one stage until the lease is lost, the peer leaves, or it must move to another stage."""
        await self._saver.list_saved()
        await self._saver.publish(registration)
        replica = await self._join_stage(registration)
        while replica is not None and not self._drain.may_go(replica.index):
            head = self._view.require_head()
            if not await self._advance(replica, head):
                self._apply_event(PeerEvent.OUTDATED)
                replica = await self._join_stage(registration)
                continue
            await self._saver.list_if_lost(self._view.lost_stages)
            await self._saver.publish(registration)
            if await self._give_up_if_moved(replica, head):
                return
            replica.donor.update_receivers(*split_by_last_step(replica, head, self._view))
            self._take_notice()
            due_s = self._presence.due_s
            if due_s <= 0 or self._presence.is_outdated(self._state.phase):
                await self._announce(registration, replica.index)
            else:
                await self._view.next_change(min(due_s, self._drain.remaining_s))
        if replica is not None:
            await self._hand_over(registration, replica)

    async def _join_stage(self, registration: Registration) -> Replica | None:
        """Get the state of a stage, and announce it. Returns None: it is to leave and has no replica."""
        try:
            async with self._view.while_holds(lambda: bool(self.replica) or not self._drain.is_requested):
                await self._view.wait_for_model(self._rules.digest)
                self._service.incarnation = registration.incarnation
                if (replica := self.replica) is None:
                    replica = await self._join.join(registration, self._state.phase)
                else:
                    await self._announce(registration, replica.index)
                    await self._join.prepare_rejoin(registration, replica)
                    self._service.drop_replica()
                    self._view.notify()  # if it is to leave, it need not wait for the fetch
                    replica = await self._join.rejoin(replica)
                self._service.hold(replica)
        except NoLongerValid:
            if self._drain.is_requested:
                return None
            raise
        self._apply_event(PeerEvent.ARRIVED)
        self._take_notice()
        await self._announce(registration, replica.index)
        return replica

    async def _advance(self, replica: Replica, head: Head) -> bool:
        """Apply the committed steps up to this head, and save each that is due; missed ones come from another peer of
        the stage. Returns whether the replica is at the head.
        """
        last_step = replica.step
        if not (is_at_head := await replica.follow(head)):
            async for step in catch_up(replica, head, self._view, self._client, self._rules.lease_s):
                await self._save(replica, head)
                last_step = step
            head = self._view.require_head()
            is_at_head = await replica.follow(head)
        if is_at_head and replica.step != last_step:
            await self._save(replica, head)
        return is_at_head

    async def _give_up_if_moved(self, replica: Replica, head: Head) -> bool:
        """Give up this replica if the head moves this peer to another stage and it can go. Returns whether it did."""
        target = replica.index if self._drain.is_requested else head.moves.get(self.name, replica.index)
        if target == replica.index or head.version != replica.version or not await self._can_be_spared(replica, head):
            return False
        self._join.move_target = target
        self._service.drop_replica()
        return True

    async def _can_be_spared(self, replica: Replica, head: Head) -> bool:
        """Whether another peer of the stage stays, has this step's state, and replies.

        The reply is needed because a peer that died just now is still in the directory.
        """
        index = replica.index
        leaving_names = {self.name, *head.moves}
        peers = [
            peer for peer in self._view.serving(index) if peer.phase == Phase.SERVING and peer.name not in leaving_names
        ]
        for peer in peers:
            with suppress(NoLongerValid, Rejected):
                status = await self._client.request(peer, Status(), limit=self._rules.lease_s)
                stage = status.peer.stage if status.peer else None
                if head.had_member(peer.name, index) or (stage is not None and stage.step == head.step):
                    return True
        return False

    async def _save(self, replica: Replica, head: Head) -> None:
        """Save if a save is due and the stage chose this peer. Peers that took part in the step are chosen first.

        A peer left out of the step may never have its state.

        After a failed save a peer tries again at each step at which a save is due; the chosen peer saves as well.
        """
        serving = self._view.serving(replica.index)
        members = [peer for peer in serving if head.had_member(peer.name, replica.index)]
        saver = choose_saver(members, replica.step) or choose_saver(serving, replica.step)
        is_saver = saver is not None and saver.name == self.name
        if self._saver.is_due(replica.step) and (is_saver or self._saver.failure):
            await self._saver.save(self._tasks, replica.as_saved(), replica.copy)

    def _apply_event(self, event: PeerEvent) -> None:
        self._state = state_after(self._state, event)

    def _take_notice(self) -> None:
        if self._drain.is_requested and self._state is PeerState.SERVING:
            self._apply_event(PeerEvent.NOTICED)

    async def _announce(self, registration: Registration, stage: int, successor: str = "") -> None:
        """Announce the present state."""
        await self._presence.announce(registration, self._state.phase, stage, successor)

    async def _hand_over(self, registration: Registration, replica: Replica) -> None:
        """Send what was counted to another peer of the stage. The last peer of a stage can only save its state."""
        self._take_notice()
        self._apply_event(PeerEvent.RELIEVED)
        await self._announce(registration, replica.index)
        is_last = self._drain.is_last(replica.index)
        if not is_last and (successor := await self._drain.hand_over_sum(replica, self._client)):
            await self._announce(registration, replica.index, successor)
        if is_last and self._saver.saves and replica.step > 0:
            await self._saver.save(self._tasks, replica.as_saved(), replica.copy)
        self._service.drop_replica()
