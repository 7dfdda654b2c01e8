"""A trainer: takes microbatches through the stages, by the peers that reply soonest, and holds no parameters.

Each of its slots is a coroutine: get a microbatch, find its data from its name, run forward through all stages but the
last and backward through all of them, and report which peers counted it. It keeps every stage's inputs, so any running
peer can compute a backward. A peer that fails or is late is banned, and the request goes to another. The trainer passes
tensors between two stages unchanged, coded or not. Validation data goes forward only, and the last stage returns its
losses.

Source: SWARM, section 3.2 and Appendix C.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, get_args

from pipelined.aio.backoff import Backoff
from pipelined.aio.events import emit, warn
from pipelined.aio.latency import TimeoutEstimator
from pipelined.aio.nursery import Nursery
from pipelined.errors import UsageError
from pipelined.membership.client import MemberClient, Node
from pipelined.membership.messages import Reply
from pipelined.membership.reasons import Next, Reason
from pipelined.membership.view import RETRY_S, NoLongerValid
from pipelined.swarm.config import Rules, stop_if_refused
from pipelined.swarm.protocol.status import LeaderReport, TrainerReport, largest
from pipelined.swarm.protocol.work import (
    Announce,
    Backward,
    Evaluate,
    Forward,
    GetWork,
    PassRequest,
    Score,
    WorkItem,
    WorkReport,
)
from pipelined.swarm.records.members import Peer
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.stages.codec import Coded
from pipelined.swarm.stages.stage import Microbatch
from pipelined.swarm.trainer.routing import Pass, Router
from transports.rpc import Party, Rejected, Unreachable

MOST_NON_FINITE = 16
"""Non-finite microbatches in a row after which the trainer ends: fewer may be due to one broken peer."""
LEAST_PAUSE_S = 1e-3
"""Shortest wait for the end of a ban, in seconds: timers fire a little early, so the wait would repeat many times."""
RECENT = 64
"""Microbatches over which the present speed is measured."""
MOST_PAUSE_S = 10.0
"""Longest pause between two requests to a banned peer to announce itself again, in seconds."""
Data = Callable[[Microbatch], tuple[Sequence[Any], Sequence[Any]]]
"""The inputs of the first stage and the labels of the last, from the name alone. The indices of validation data follow
those of the batch; its labels may have fewer samples than its inputs: the other inputs are padding."""
TOPICS = (*get_args(Pass), Evaluate.topic)


class StepPassed(Exception):
    """The work of a microbatch has no use any more: its step has passed."""


class NonFinite(Exception):
    """The values of a microbatch are missing, or not finite."""


class SwarmTrainer:
    """The slots of one trainer.

    Args:
        node: the trainer's process.
        rules: no reply is late before `rules.lease_s`.
        slots: microbatches in progress at once.
    """

    def __init__(self, node: Node, view: SwarmView, data: Data, rules: Rules, slots: int):
        self.name, self._stages, self._data, self._slots = node.name, rules.stages, data, slots
        self._view, self._clock = view, node.clock
        self._router = Router(rules.stages, seed=node.name)
        self._client = MemberClient(node.endpoint, view)
        self._patience = {(n, topic): TimeoutEstimator(rules.lease_s) for n in range(rules.stages) for topic in TOPICS}
        self.done, self.answers = 0, Counter[str]()
        self._ends = deque[float](maxlen=RECENT)
        self._banned_asked, self._non_finite = set[Party](), 0

    async def run(self, incarnation: int) -> None:
        """Train under this incarnation until cancelled."""
        async with Nursery() as self._tasks:
            self._tasks.create_task(self._follow())
            for slot in range(self._slots):
                self._tasks.create_task(self._work(incarnation, slot))

    def report(self, leads: LeaderReport | None) -> TrainerReport:
        """What this trainer does, for status; `leads`: what it does as the leader."""
        now = self._clock.now()
        passed = now - self._ends[0] if self._ends else 0.0
        rate = round((len(self._ends) - 1) / passed, 3) if passed else 0.0
        banned = {address: round(left, 3) for address, left in largest(self._router.banned(now)).items()}
        return TrainerReport(self.done, rate, largest(self.answers), banned, leads)

    async def _follow(self) -> None:
        """Keep the router up to date with the peers that serve."""
        known, seen = [dict[str, Party]() for _ in range(self._stages)], [-1] * self._stages
        with self._view.census.departures() as gone:
            for name in self.answers.keys() - self._view.peers.keys():
                del self.answers[name]
            while True:
                changes = [self._view.census.changes(stage) for stage in range(self._stages)]
                self._route([stage for stage in range(self._stages) if changes[stage] != seen[stage]], known)
                for name in {each.name for each in gone} - self._view.peers.keys():
                    self.answers.pop(name, None)
                gone.clear()
                seen = changes
                await self._view.next_change()

    def _route(self, stages: Sequence[int], known: list[dict[str, Party]]) -> None:
        """Update the router with the peers of these stages; `known` has the last update by stage and address."""
        before = {address: (stage, party) for stage in stages for address, party in known[stage].items()}
        for stage in stages:
            known[stage] = {peer.address: self._party(peer) for peer in self._view.serving(stage)}
        now = {address: (stage, party) for stage in stages for address, party in known[stage].items()}
        for _, party in (before[address] for address in before.keys() - now.keys()):
            self._router.remove(party)
        for stage, party in (each for address, each in now.items() if each != before.get(address)):
            self._router.add(stage, party)

    def _party(self, peer: Peer) -> Party:
        """A peer as the router identifies it: by address and announcement, so that it differs after another one."""
        return Party(peer.address, self._view.record_revisions[peer.name])

    async def _work(self, incarnation: int, slot: int) -> None:
        done: WorkReport | None = None
        while True:
            leader = await self._view.wait_for(lambda: self._view.leader)
            request = GetWork(self.name, incarnation, slot, done)
            try:
                leads = partial(self._view.is_leader, leader)
                item = await self._client.request_while(leads, leader.address, request)
                done = None  # received; until here it is sent again, and the leader counts it once
                done = await self._run_if_current(item)
            except NoLongerValid:
                continue
            except Unreachable:
                await self._clock.sleep(RETRY_S)
            except Rejected as rejection:
                stop_if_refused(rejection)
                if rejection.reason == Reason.MALFORMED:  # a retry would fail as well
                    done = None
                await self._clock.sleep(RETRY_S)

    async def _run_if_current(self, item: WorkItem) -> WorkReport | None:
        """Take one microbatch through the stages. None: its step has passed, or the swarm rolled back."""
        try:
            async with self._view.while_holds(lambda: self._is_of_use(item)):
                report = await (self._train_microbatch(item) if item.stages else self._evaluate_microbatch(item))
        except (NoLongerValid, StepPassed):
            return None
        except NonFinite as error:
            self._non_finite += 1
            if self._non_finite == MOST_NON_FINITE:
                fact = f"{MOST_NON_FINITE} consecutive microbatches were not finite ({error})"
                raise UsageError(f"{fact}; training has diverged: lower the learning rate") from error
            return None
        self.done, self._non_finite = self.done + 1, 0
        self._ends.append(self._clock.now())
        return report

    def _is_of_use(self, item: WorkItem) -> bool:
        """Whether the head has not moved since, or has moved to one with the parameters that the item is for."""
        head = self._view.head
        ours = head is not None and (head.step, head.parameter_version) == (item.step, item.lineage)
        return ours or self._view.head_revision <= item.revision

    async def _evaluate_microbatch(self, item: WorkItem) -> WorkReport:
        """Forward only. Returns the sum of the losses, and the number of samples."""
        inputs, labels = self._data(item.which)
        flow: Coded = (tuple(inputs), None)
        for stage in range(self._stages):
            last = (tuple(labels), None) if stage == self._stages - 1 else None
            _, reply = await self._ask(stage, Evaluate(item.step, item.index, item.lineage, flow, last))
            flow = reply.arrays
        try:
            losses = reply.losses(len(labels[0]))
        except ValueError as error:
            raise NonFinite(str(error)) from error
        score = Score(math.fsum(losses), len(losses))
        return WorkReport(item.step, item.revision, item.index, {}, score)

    async def _train_microbatch(self, item: WorkItem) -> WorkReport:
        """Forward, then backward. Returns by stage the peer that counted it."""
        inputs, labels = self._data(item.which)
        named = item.step, item.index, item.lineage
        kept: list[Coded] = [(tuple(inputs), None)]
        for stage in range(self._stages - 1):
            _, outputs = await self._ask(stage, Forward(*named, kept[stage]))
            kept.append(outputs.arrays)
        incoming: Coded = (tuple(labels), None)
        counted = dict[int, str]()
        for stage in reversed(range(self._stages)):
            peer, reply = await self._ask(stage, Backward(*named, kept.pop(), incoming, stage in item.stages))
            incoming = reply.arrays
            if reply.counted:
                counted[stage] = peer.name
        return WorkReport(item.step, item.revision, item.index, counted, None)

    async def _ask(self, stage: int, request: PassRequest[Reply]) -> tuple[Peer, Reply]:
        """Send a request to one peer of a stage after another until one replies.

        Raises:
            StepPassed: the step has passed.
            NonFinite: the input of this peer, or its output, is not finite: the leader assigns the microbatch again.
        """
        passed: Pass = "backward" if isinstance(request, Backward) else "forward"
        tried, late = set[Party](), 0
        while True:
            peer = await self._pick(stage, passed)
            party, began = self._party(peer), self._clock.now()
            patience = self._patience[stage, request.topic]
            try:
                with self._router.under_way(party):
                    limit = patience.limit_after(late)
                    reply = await self._client.request(peer, request, limit)
            except NoLongerValid as error:
                late += 1
                self._ban(peer, party, str(error) or f"gone, or no answer to {request.topic} in {limit:.3g} s")
                continue
            except Rejected as rejection:
                await self._after_rejection(peer, party, rejection, tried)
                continue
            took = self._clock.now() - began
            self._router.observe(party, passed, took)
            patience.observe(took)
            if peer.name in self._view.peers:
                self.answers[peer.name] += 1
            return peer, reply

    async def _after_rejection(self, peer: Peer, party: Party, rejection: Rejected, tried: set[Party]) -> None:
        """Do what `Reason.next` says, and return to send the request again.

        Args:
            tried: peers that rejected this request, and that are not banned.
        Raises: StepPassed, NonFinite: as `_ask`.
        """
        reason = Reason.of(rejection)
        if reason is Reason.NOT_FINITE:
            raise NonFinite(str(rejection)) from rejection
        then = reason.next if reason else Next.ELSEWHERE
        if then is Next.DROP:
            raise StepPassed from rejection
        if then is Next.RETRY or (then is Next.OTHERS and party in tried):
            await self._clock.sleep(RETRY_S)
        elif then is Next.OTHERS:
            tried.add(party)
        else:
            self._ban(peer, party, str(rejection))

    def _ban(self, peer: Peer, party: Party, why: str) -> None:
        """Stop using this peer until it announces itself again, and request that."""
        now = self._clock.now()
        seconds = self._router.ban(party, now) - now
        if party not in self._banned_asked:
            here = self._view.is_here(peer)  # else it left or died, as the directory says
            facts = {"peer": peer.name, "stage": peer.stage, "by": self.name, "seconds": seconds, "why": why}
            (warn if here else emit)("peer banned", **facts)
            self._banned_asked.add(party)
            self._tasks.create_task(self._ask_to_announce(peer, party))

    async def _ask_to_announce(self, peer: Peer, party: Party) -> None:
        """Repeat the request until the peer has announced itself or left: it may be unreachable now but not later."""
        backoff = Backoff(RETRY_S, MOST_PAUSE_S)
        try:
            while self._view.is_here(peer) and self._party(peer) == party:
                with suppress(NoLongerValid, Rejected):
                    await self._client.request(peer, Announce())
                await self._view.next_change(backoff.next())
        finally:
            self._banned_asked.discard(party)

    async def _pick(self, stage: int, which: Pass) -> Peer:
        """The next peer. Waits while the stage has none to pick; after a wait, picks even a banned one."""
        waited = False
        while True:
            now, serving = self._clock.now(), self._view.serving(stage)
            party = self._router.pick(stage, which, now)
            for peer in serving if party else ():
                if self._party(peer) == party:
                    return peer
            if waited and party is None and serving:
                banned = self._router.banned(now)
                return min(serving, key=lambda peer: banned.get(peer.address, 0.0))
            left = min(RETRY_S, max(LEAST_PAUSE_S, self._router.available_at(stage, now) - now))
            await self._view.next_change(left if serving else math.inf)
            waited = True
