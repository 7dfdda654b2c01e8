"""A tiny language model trained by a swarm on the virtual clock: the real actors and torch stages, and peers that die.

The rule: what is computed and said is real, and only time is not, so a training with all its faults is the same on any
machine, and `alone` is the plain loop over the same stages that it is held to.
"""

import asyncio
import math
import random
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from apps._swarm_config import Subject, Told
from apps._swarm_data import MicrobatchFeed, feed_of
from apps._swarm_subject import rules_of, training_of
from apps._text import Text
from pipelined.clock import Clock, run_virtual
from pipelined.device import TimedDevice
from pipelined.swarm.directory import Directory, EmbeddedDirectory, serve_directory
from pipelined.swarm.membership import Roster
from pipelined.swarm.processes import PeerProcess, TrainerProcess
from pipelined.swarm.rules import Rules
from pipelined.swarm.stage import Microbatch
from pipelined.swarm.torch_stage import TorchStage
from pipelined.swarm.training import Training
from transports import Block
from transports.endpoints import Endpoint
from transports.endpoints.virtual import VirtualNetwork

SECONDS = {"forward": 0.01, "backward": 0.03, "step": 0.005}
"""Of the devices, virtual; a step of a whole swarm takes about half a second."""


@dataclass(frozen=True)
class Lesson:
    """One training, ready to be run in any way."""

    subject: Subject
    training: Training
    rules: Rules
    feed: MicrobatchFeed

    @classmethod
    def of(cls, subject: Subject, text: Text) -> "Lesson":
        """Of what is to be trained and what on."""
        told = Told(subject, text.tokenizer.vocab_size, text.digest)
        training = training_of(told)
        rows, microbatches = subject.microbatch, subject.batch // subject.microbatch
        return cls(
            subject, training, rules_of(told, training), feed_of(text, rows, subject.seq, microbatches, subject.seed)
        )

    def stage(self, index: int) -> TorchStage:
        """One of its stages before the first step."""
        return TorchStage(self.training, index)


def alone(lesson: Lesson) -> list[float]:
    """The loss of each step of a plain loop in one process: nothing sent, nothing coded, nobody lost."""
    stages = [lesson.stage(index) for index in range(lesson.rules.stages)]
    losses = list[float]()
    for step in range(lesson.subject.steps):
        passed = [_through(stages, lesson.feed, Microbatch(step, index)) for index in range(lesson.rules.batch)]
        losses.append(math.fsum(passed) / lesson.rules.samples)
        norm = math.sqrt(math.fsum(stage.square(stage.sums) for stage in stages))
        for stage in stages:
            stage.apply(step, stage.sums, lesson.rules.scale(norm))
            stage.clear()
    return losses


def _through(stages: list[TorchStage], feed: MicrobatchFeed, which: Microbatch) -> float:
    inputs, given = ([Block.of(array) for array in arrays] for arrays in feed(which))
    kept = [inputs]
    for stage in stages[:-1]:
        kept.append([Block.of(array) for array in stage.forward(which, kept[-1])])
    losses = list[float]()
    for stage in reversed(stages):
        passed = stage.backward(which, kept.pop(), given, True)
        given = [Block.of(array) for array in passed.gradients]
        losses.append(passed.loss or 0.0)
    return math.fsum(losses)


@dataclass(frozen=True)
class Trained:
    """What came of it.

    Args:
        losses: by step.
        died, came: peers that were killed, and that came in the meantime.
    """

    losses: list[float]
    died: int
    came: int


def together(lesson: Lesson, replicas: int, every_s: float) -> Trained:
    """Train by a swarm.

    Args:
        replicas: peers that begin at each stage.
        every_s: seconds from one death to the next; another peer comes half-way between. 0: nobody dies.
    """
    return run_virtual(_Crowd(lesson).train(replicas, every_s))


class _Crowd:
    """The parties of one swarm."""

    def __init__(self, lesson: Lesson):
        self._lesson, self._network = lesson, VirtualNetwork(lesson.subject.seed, delay=1e-3, jitter=5e-4)
        self._draw, self._losses = random.Random(lesson.subject.seed), dict[int, float]()
        self._tasks, self._mortal = dict[str, "asyncio.Task[None]"](), list[str]()
        self._died, self._came = list["asyncio.Task[None]"](), 0

    async def train(self, replicas: int, every_s: float) -> Trained:
        network, stages, steps = self._network, self._lesson.rules.stages, self._lesson.subject.steps
        self._start("directory", serve_directory(network.endpoint("directory"), network.clock("directory")))
        for place in range(stages * replicas):
            self._peer(f"peer{place}", place % stages, mortal=place >= stages)
        endpoint, directory, clock = self._client("trainer")
        trainer = TrainerProcess(
            "trainer", self._lesson.feed, self._lesson.rules, endpoint, directory, clock, 2 * stages * replicas, steps
        )
        running = self._start("trainer", trainer.run())
        beside = [asyncio.ensure_future(self._note(trainer.roster))]
        if every_s:
            beside.append(asyncio.ensure_future(self._churn(every_s)))
        try:
            await running
        finally:
            for task in (*beside, *self._tasks.values()):
                task.cancel()
            await asyncio.gather(*beside, *self._tasks.values(), *self._died, return_exceptions=True)
        return Trained([self._losses[step] for step in range(1, steps + 1)], len(self._died), self._came)

    async def _note(self, roster: Roster) -> None:
        """Take down the loss of every step as it is decided."""
        while True:
            await roster.wait_for(lambda: roster.head is not None and roster.head.step not in self._losses)
            self._losses[roster.head.step] = roster.head.loss

    async def _churn(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s / 2)
            name = self._draw.choice(self._mortal)
            self._mortal.remove(name)
            self._network.kill(name)
            self._died.append(self._tasks.pop(name))
            await asyncio.sleep(every_s / 2)
            self._came += 1
            self._peer(f"late{self._came}", None, mortal=True)

    def _peer(self, name: str, stage: int | None, mortal: bool) -> None:
        endpoint, directory, clock = self._client(name)
        device = TimedDevice(SECONDS, clock)
        process = PeerProcess(
            name,
            self._lesson.stage,
            self._lesson.rules,
            endpoint,
            directory,
            clock,
            device,
            stage,
            threads=False,
        )
        if mortal:
            self._mortal.append(name)
        self._start(name, process.run())

    def _client(self, name: str) -> tuple[Endpoint, Directory, Clock]:
        endpoint, clock = self._network.endpoint(name), self._network.clock(name)
        return endpoint, EmbeddedDirectory(endpoint, "virtual://directory", clock), clock

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        self._tasks[name] = self._network.run(name, work)
        return self._tasks[name]
