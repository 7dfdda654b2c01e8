"""A peer: finds the stage that needs it most, fetches its state, serves it, moves when told to, and leaves in order.

A life under one lease is a *standing*; when that is lost the peer begins another by itself, with the state it has. The
one rule: what it does to its parameters follows from the directory's head alone.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pipelined.clock import Clock
from pipelined.device import Device
from pipelined.swarm.asking import Asking
from pipelined.swarm.averaging import PIECE_BYTES
from pipelined.swarm.coding import Coding
from pipelined.swarm.conductor import OtherModel
from pipelined.swarm.directory import CutOff, LeaseLost
from pipelined.swarm.holding import Holding
from pipelined.swarm.joining import Joining
from pipelined.swarm.membership import RETRY_S, Ended, Roster
from pipelined.swarm.notes import field
from pipelined.swarm.rebalance import place
from pipelined.swarm.records import PEERS, PLACING, Peer, Phase
from pipelined.swarm.rules import Rules
from pipelined.swarm.stage import SwarmStage
from pipelined.swarm.standing import Standing, standing
from transports.endpoints import Answer, Endpoint, Handler, Question, Refusal

NEWS_S = 1.0
"""A peer announces itself again at most this often, however many ask for it."""
Build = Callable[[int], SwarmStage]
"""Build a stage as it is before the first step, the same on all peers."""


class StagePeer:
    """One peer of a swarm.

    Args:
        name: of this peer, nobody else's.
        build: builds the stage that it is to hold.
        stage: which; None: where it helps most.
    """

    def __init__(
        self,
        name: str,
        build: Build,
        rules: Rules,
        endpoint: Endpoint,
        roster: Roster,
        clock: Clock,
        device: Device,
        coding: Coding,
        stage: int | None = None,
    ):
        self.name, self.holding = name, None
        self._build, self._rules, self._endpoint, self._roster = build, rules, endpoint, roster
        self._clock, self._device, self._coding, self._wanted = clock, device, coding, stage
        self._asking = Asking(endpoint, roster)
        self._incarnation = 0
        self._leaving = self._asked_to_announce = False
        self._announced = clock.now()

    holding: Holding | None

    async def run(self) -> None:
        """Live under one lease after another, until asked to leave.

        Raises:
            OtherModel: the swarm trains something else.
        """
        self._answer_questions()
        while not self._leaving:
            try:
                async with standing(
                    self._roster.directory, PEERS + self.name, self._rules.lease_s, self._clock
                ) as place:
                    await self._live(place)
                    await place.lease.revoke()
            except (LeaseLost, CutOff):
                await self._clock.sleep(RETRY_S)

    def leave(self) -> None:
        """Hand over and go (a preemption notice)."""
        self._leaving = True
        self._roster.look_again()

    async def _live(self, place: Standing) -> None:
        """Hold one stage until the lease is lost, the peer leaves, or it is to hold another."""
        await self._roster.wait_for(lambda: self._roster.head is not None)
        if self._roster.head.model != self._rules.digest:
            raise OtherModel(self._rules.digest, self._roster.head.model)
        self._incarnation = place.incarnation
        await self._come_to_hold(place)
        await self._say(place, Phase.SERVING)
        while not self._leaving:
            head = self._roster.head
            if not await self.holding.follow(head):
                await self._come_to_hold(place)
                await self._say(place, Phase.SERVING)
                continue
            target, here = head.moves.get(self.name, self.holding.index), self._roster.serving(self.holding.index)
            if target != self.holding.index and head.step == self.holding.step and len(here) > 1:
                self._wanted = target
                self._let_go()
                return
            if not any(peer.phase == Phase.JOINING for peer in self._roster.peers.values()):
                self.holding.donor.nobody_joins()
            due = self._announced + NEWS_S - self._clock.now() if self._asked_to_announce else math.inf
            if due <= 0:
                await self._say(place, Phase.SERVING)
            else:
                await self._roster.next_change(due)
        await self._hand_over(place)

    async def _come_to_hold(self, place: Standing) -> None:
        """Get the state of this peer's stage, as it stands now; what is held already is kept as far as it goes."""
        holding = self.holding
        if holding:
            index = holding.index
            await self._say(place, Phase.JOINING)
            await self._roster.wait_for(lambda: self._roster.revision >= place.revision)
            await holding.follow(self._roster.head)  # it may have been decided while this peer was none
            await holding.start_afresh()
        else:
            index = await self._choose(place)
        stage, step = (holding.stage, holding.step) if holding else (self._build(index), 0)
        self._let_go()
        step = await Joining(stage, index, step, self._roster, self._asking, self._device).arrive()
        self.holding = Holding(self.name, index, stage, step, self._rules, self._device, self._endpoint, self._coding)
        self._answer_questions()

    async def _choose(self, place: Standing) -> int:
        """Choose a stage, knowing what all others chose before."""
        while True:
            seen = self._roster.placing_revision
            index = self._stage_to_hold()
            if await place.put(self._record(place, Phase.JOINING, index), PLACING, seen):
                return index
            await self._roster.wait_for(lambda seen=seen: self._roster.placing_revision != seen)

    def _stage_to_hold(self) -> int:
        if self._wanted is not None:
            return self._wanted
        stages = [dict[str, float | None]() for _ in range(self._rules.stages)]
        for peer in self._roster.peers.values():
            if peer.stage in range(len(stages)) and peer.name != self.name:
                stages[peer.stage][peer.name] = None
        return place(stages)

    async def _say(self, place: Standing, phase: Phase, index: int | None = None, heir: str = "") -> None:
        index = self.holding.index if index is None else index
        self._asked_to_announce, self._announced = False, self._clock.now()
        await place.put(self._record(place, phase, index, heir))

    def _record(self, place: Standing, phase: Phase, index: int, heir: str = "") -> Peer:
        return Peer(self.name, self._endpoint.address, place.incarnation, index, phase, self._rules.digest, heir)

    async def _hand_over(self, place: Standing) -> None:
        """Give what was counted to another peer of the stage; where there is none, stay until it counts, if it can."""
        holding, roster = self.holding, self._roster
        await self._say(place, Phase.LEAVING)
        while holding.counted and roster.trainers and not roster.cut_off and await holding.follow(self._roster.head):
            heir = await self._find_heir(holding)
            if heir is not None:
                await self._say(place, Phase.LEAVING, heir=heir)
                break
            await self._roster.next_change(RETRY_S)
        self._let_go()

    async def _find_heir(self, holding: Holding) -> str | None:
        """Whoever took over what was counted here; None where nobody did."""
        for other in self._roster.serving(holding.index):
            with suppress(Ended, Refusal):
                await holding.hand_over(lambda arrays, note, other=other: self._ask_heir(other, arrays, note))
                return other.name
        return None

    async def _ask_heir(self, heir: Peer, arrays: Sequence[Any], note: Mapping[str, Any]) -> None:
        await self._asking.ask(heir, "inherit", *arrays, **note)

    def _let_go(self) -> None:
        if self.holding:
            self.holding.give_up("its peer holds it no longer")
        self.holding = None

    def _answer_questions(self) -> None:
        """Answer what peers are asked; how large a question may be depends on what is held."""
        holding = self.holding
        arrays = holding.most_bytes if holding else 0
        sums = holding.stage.sums.nbytes if holding else 0
        topics: dict[str, tuple[Callable[[Holding], Handler], int]] = {
            "forward": (lambda held: held.forward, arrays),
            "backward": (lambda held: held.backward, 2 * arrays),
            "prepare": (lambda held: held.prepare, 0),
            "resume": (lambda held: held.resume, 0),
            "reduce": (lambda held: held.reduce, 0),
            "piece": (lambda held: held.piece, PIECE_BYTES),
            "inherit": (lambda held: held.inherit, sums + 16 * self._rules.batch),
            "manifest": (lambda held: held.manifest, 0),
            "chunk": (lambda held: held.donor.chunk, 0),
            "total": (lambda held: held.donor.total, 0),
        }
        for topic, (method, most_bytes) in topics.items():
            self._endpoint.answer(topic, self._for_us(method), most_bytes)
        self._endpoint.answer("announce", self._announce)
        self._endpoint.answer("status", self._status)

    def _for_us(self, method: Callable[[Holding], Handler]) -> Handler:
        async def answer(question: Question) -> Answer:
            if field(question.note, "to") != self._incarnation:
                raise Refusal("stale", incarnation=self._incarnation)
            if self.holding is None:
                raise Refusal("behind")
            return await method(self.holding)(question)

        return answer

    async def _status(self, question: Question) -> Answer:
        """What this peer does, for whoever looks on."""
        holding, endpoint = self.holding, self._endpoint
        held = {} if holding is None else {"step": holding.step, "counted": len(holding.counted), **holding.load.told()}
        done = {"forwards": 0, "backwards": 0} if holding is None else holding.done
        traffic = {
            "sent": endpoint.bytes_sent,
            "received": endpoint.bytes_received,
            "rejected": dict(endpoint.rejected),
        }
        return Answer(note={**held, **done, **traffic, "cut_off": self._roster.cut_off})

    async def _announce(self, question: Question) -> Answer:
        """A trainer banned us and would have us back: say again what we are, but not at everybody's whim."""
        self._asked_to_announce = True
        self._roster.look_again()
        return Answer()
