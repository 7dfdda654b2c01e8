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
from typing import Any, Literal, get_args

from pipelined.aio.backoff import Backoff
from pipelined.aio.events import emit, warn
from pipelined.aio.latency import TimeoutEstimator
from pipelined.aio.nursery import Nursery
from pipelined.errors import UsageError
from pipelined.membership.client import Asking, Node
from pipelined.membership.records import Peer
from pipelined.membership.view import RETRY_S, NoLongerValid
from pipelined.swarm.config import Rules
from pipelined.swarm.protocol import NonFinite, StepPassed, WorkItem, read_losses, read_work_item
from pipelined.swarm.stages.codec import Coded
from pipelined.swarm.stages.stage import Microbatch
from pipelined.swarm.trainer.routing import Pass, Wiring
from pipelined.swarm.view import SwarmView
from transports.rpc import Party, Rejected, Response, Unreachable
from transports.rpc.fields import field

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
Topic = Pass | Literal["evaluate"]
TOPICS: tuple[Topic, ...] = (*get_args(Pass), "evaluate")


class SwarmTrainer:
    """The slots of one trainer.

    Args:
        node: the trainer's process.
        rules: no reply is late before `rules.lease_s`.
        slots: microbatches in progress at once.
    """

    def __init__(self, node: Node, view: SwarmView, data: Data, rules: Rules, slots: int):
        self.name, self._stages, self._data, self._slots = node.name, rules.stages, data, slots
        self._endpoint, self._view, self._clock = node.endpoint, view, node.clock
        self._wiring = Wiring(rules.stages, seed=node.name)
        self._asking = Asking(node.endpoint, view)
        self._patience = {(n, topic): TimeoutEstimator(rules.lease_s) for n in range(rules.stages) for topic in TOPICS}
        self.done, self.answers = 0, Counter[str]()
        self._ends = deque[float](maxlen=RECENT)
        self._unheard, self._non_finite = set[Party](), 0

    async def run(self, incarnation: int) -> None:
        """Train under this incarnation until cancelled."""
        async with Nursery() as self._tasks:
            self._tasks.create_task(self._follow())
            for slot in range(self._slots):
                self._tasks.create_task(self._work(incarnation, slot))

    def status(self) -> dict[str, Any]:
        """For status: microbatches done, and how many per second now; replies by peer; seconds of bans by address."""
        now = self._clock.now()
        passed = now - self._ends[0] if self._ends else 0.0
        return {
            "done": self.done,
            "rate": round((len(self._ends) - 1) / passed, 3) if passed else 0.0,
            "answers": dict(self.answers),
            "banned": {name: round(left, 3) for name, left in self._wiring.banned(now).items()},
        }

    async def _follow(self) -> None:
        """Keep the wiring up to date with the peers that serve."""
        known, seen = [dict[str, Party]() for _ in range(self._stages)], [-1] * self._stages
        with self._view.census.departures() as gone:
            for name in self.answers.keys() - self._view.peers.keys():
                del self.answers[name]
            while True:
                changes = [self._view.census.changes(stage) for stage in range(self._stages)]
                self._wire([stage for stage in range(self._stages) if changes[stage] != seen[stage]], known)
                for name in {each.name for each in gone} - self._view.peers.keys():
                    self.answers.pop(name, None)
                gone.clear()
                seen = changes
                await self._view.next_change()

    def _wire(self, stages: Sequence[int], known: list[dict[str, Party]]) -> None:
        """Update the wiring with the peers of these stages; `known` has the last update by stage and address."""
        before = {address: (stage, party) for stage in stages for address, party in known[stage].items()}
        for stage in stages:
            known[stage] = {peer.address: self._party(peer) for peer in self._view.serving(stage)}
        now = {address: (stage, party) for stage in stages for address, party in known[stage].items()}
        for _, party in (before[address] for address in before.keys() - now.keys()):
            self._wiring.remove(party)
        for stage, party in (each for address, each in now.items() if each != before.get(address)):
            self._wiring.add(stage, party)

    def _party(self, peer: Peer) -> Party:
        """A peer as the wiring identifies it: by address and announcement, so that it differs after another one."""
        return Party(peer.address, self._view.announced[peer.name])

    async def _work(self, incarnation: int, slot: int) -> None:
        done: dict[str, Any] | None = None
        while True:
            await self._view.wait_for(lambda: self._view.leader is not None)
            leader = self._view.leader
            note = {"name": self.name, "incarnation": incarnation, "slot": slot, "done": done}
            try:
                async with self._view.while_holds(lambda leader=leader: self._view.leader == leader):
                    reply = (await self._endpoint.request(leader.address, "work", note=note)).note
                done = None  # received; until here it is sent again, and the leader counts it once
                done = await self._while_it_stands(read_work_item(reply))
            except NoLongerValid:
                continue
            except (Unreachable, Rejected) as error:
                if isinstance(error, Rejected) and error.reason == "malformed":  # a retry would fail as well
                    done = None
                await self._clock.sleep(RETRY_S)

    async def _while_it_stands(self, item: WorkItem) -> dict[str, Any] | None:
        """Take one microbatch through the stages. None: its step has passed, or the swarm rolled back."""
        try:
            async with self._view.while_holds(lambda: self._is_of_use(item)):
                report = await (self._through(item) if item.count else self._evaluated(item))
        except (NoLongerValid, StepPassed):
            return None
        except NonFinite as error:
            self._non_finite += 1
            if self._non_finite == MOST_NON_FINITE:
                fact = f"{MOST_NON_FINITE} microbatches one after another came to nothing ({error})"
                raise UsageError(f"{fact}; training has diverged: lower the learning rate") from error
            return None
        self.done, self._non_finite = self.done + 1, 0
        self._ends.append(self._clock.now())
        return {**item.which._asdict(), "revision": item.revision, "counted": [], **report}

    def _is_of_use(self, item: WorkItem) -> bool:
        """Whether the head has not moved since, or has moved to one with the parameters that the item is for."""
        head = self._view.head
        ours = head is not None and (head.step, head.basis) == (item.which.step, item.lineage)
        return ours or self._view.head_revision <= item.revision

    async def _evaluated(self, item: WorkItem) -> dict[str, Any]:
        """Forward only. Returns the sum of the losses, and the number of samples."""
        inputs, labels = self._data(item.which)
        flow: Coded = (tuple(inputs), None)
        for stage in range(self._stages):
            last = stage == self._stages - 1
            groups = [flow, (tuple(labels), None)] if last else [flow]
            _, response = await self._ask(stage, "evaluate", item.which, groups, lineage=item.lineage)
            flow = (response.blocks, field(response.note, "codec"))
        losses = read_losses(response, len(labels[0]))
        return {"score": [math.fsum(losses), len(losses)]}

    async def _through(self, item: WorkItem) -> dict[str, Any]:
        """Forward, then backward. Returns by stage the peer that counted it."""
        which, count, lineage = item.which, item.count, item.lineage
        inputs, labels = self._data(which)
        kept: list[Coded] = [(tuple(inputs), None)]
        for stage in range(self._stages - 1):
            _, response = await self._ask(stage, "forward", which, [kept[stage]], lineage=lineage)
            kept.append((response.blocks, field(response.note, "codec")))
        incoming, counted = (tuple(labels), None), []
        for stage in reversed(range(self._stages)):
            groups = [kept.pop(), incoming]
            peer, response = await self._ask(stage, "backward", which, groups, lineage=lineage, count=stage in count)
            incoming = (response.blocks, field(response.note, "codec"))
            if field(response.note, "counted") is True:
                counted.append((stage, peer.name))
        return {"counted": counted}

    async def _ask(
        self, stage: int, topic: Topic, which: Microbatch, groups: Sequence[Coded], **note: Any
    ) -> tuple[Peer, Response]:
        """Send a request to one peer of a stage after another until one replies.

        Raises:
            StepPassed: the step has passed.
            NonFinite: the input of this peer, or its output, is not finite: the leader assigns the microbatch again.
        """
        arrays = [block for blocks, _ in groups for block in blocks]
        told = {"codecs": [code for _, code in groups], "blocks": [len(blocks) for blocks, _ in groups], **note}
        passed: Pass = "backward" if topic == "backward" else "forward"
        busy, late = set[Party](), 0
        while True:
            peer = await self._pick(stage, passed)
            party, began = self._party(peer), self._clock.now()
            patience = self._patience[stage, topic]
            try:
                with self._wiring.under_way(party):
                    limit = patience.limit_after(late)
                    response = await self._asking.request(
                        peer, topic, *arrays, limit=limit, step=which.step, index=which.index, **told
                    )
            except NoLongerValid as error:
                late += 1
                self._ban(peer, party, str(error) or f"gone, or no answer to {topic} in {limit:.3g} s")
                continue
            except Rejected as rejection:
                there = rejection.facts.get("step")
                if rejection.reason == "stale" and type(there) is int and there > which.step:
                    raise StepPassed from rejection
                if rejection.reason == "not finite":
                    raise NonFinite(str(rejection)) from rejection
                if rejection.reason == "busy":  # the peer is not at fault: try the others first
                    if party in busy:
                        await self._clock.sleep(RETRY_S)
                    busy.add(party)
                    continue
                if rejection.reason == "stranger":  # the peer does not know this trainer as a member yet
                    await self._clock.sleep(RETRY_S)
                    continue
                self._ban(peer, party, str(rejection))
                continue
            took = self._clock.now() - began
            self._wiring.observe(party, passed, took)
            patience.observe(took)
            if peer.name in self._view.peers:
                self.answers[peer.name] += 1
            return peer, response

    def _ban(self, peer: Peer, party: Party, why: str) -> None:
        """Stop using this peer until it announces itself again, and request that."""
        now = self._clock.now()
        seconds = self._wiring.ban(party, now) - now
        if party not in self._unheard:
            here = self._view.is_here(peer)  # else it left or died, as the directory says
            facts = {"peer": peer.name, "stage": peer.stage, "by": self.name, "seconds": seconds, "why": why}
            (warn if here else emit)("peer banned", **facts)
            self._unheard.add(party)
            self._tasks.create_task(self._ask_to_announce(peer, party))

    async def _ask_to_announce(self, peer: Peer, party: Party) -> None:
        """Repeat the request until the peer has announced itself or left: it may be unreachable now but not later."""
        backoff = Backoff(RETRY_S, MOST_PAUSE_S)
        try:
            while self._view.is_here(peer) and self._party(peer) == party:
                with suppress(NoLongerValid, Rejected):
                    await self._asking.request(peer, "announce")
                await self._view.next_change(backoff.next())
        finally:
            self._unheard.discard(party)

    async def _pick(self, stage: int, which: Pass) -> Peer:
        """The next peer. Waits while the stage has none to pick; after a wait, picks even a banned one."""
        waited = False
        while True:
            now, serving = self._clock.now(), self._view.serving(stage)
            party = self._wiring.pick(stage, which, now)
            for peer in serving if party else ():
                if self._party(peer) == party:
                    return peer
            if waited and party is None and serving:
                banned = self._wiring.banned(now)
                return min(serving, key=lambda peer: banned.get(peer.address, 0.0))
            left = min(RETRY_S, max(LEAST_PAUSE_S, self._wiring.returns(stage, now) - now))
            await self._view.next_change(left if serving else math.inf)
            waited = True
