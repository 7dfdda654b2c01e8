"""A tiny language model trained by a swarm on the virtual clock: the real actors and torch stages, and peers that die.

Computations and messages are real, only time is virtual, so a training with all its faults is the same on any machine.
Its reference is `alone`, the plain loop over the same stages.
"""

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch

from apps.common.lm.data.batches import Rows, validation_windows
from apps.common.lm.data.text import Text
from apps.swarm.config import SwarmTask, TrainingConfig
from apps.swarm.data import MicrobatchFeed, feed_of
from apps.swarm.training import rules_of, training_of
from pipelined.aio.clock import run_virtual
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules
from pipelined.swarm.stages.swarm_stage import Microbatch
from pipelined.swarm.stages.torch_stage import TorchStage
from pipelined.swarm.stages.training import Training
from tests.swarm.virtual_parties import VirtualParties
from transports import Block
from transports.rpc.virtual.network import VirtualNetwork

SECONDS = {"forward": 0.01, "backward": 0.03, "update": 0.005}
"""Of the devices, virtual; a step of a whole swarm takes about a third of a second."""
SCORED_ROWS = 64
"""Validation windows that are scored at once."""
Tell = Callable[[int, float], None]
"""Hears the loss of every step as it is taken."""


@dataclass(frozen=True)
class Lesson:
    """One training, ready to be run in any way.

    Args:
        windows: inputs and targets that it is scored on, int64, (windows, T) each.
    """

    settings: TrainingConfig
    training: Training
    rules: Rules
    feed: MicrobatchFeed
    windows: Rows

    @classmethod
    def of(cls, settings: TrainingConfig, text: Text) -> "Lesson":
        """Of what is to be trained and what on; it is scored on the whole of the text's validation part."""
        task = SwarmTask(settings, text.tokenizer.vocab_size, text.digest)
        training = training_of(task)
        rows, microbatches = settings.microbatch, settings.batch // settings.microbatch
        feed = feed_of(text, rows, settings.seq, microbatches, settings.seed)
        windows = validation_windows(text.validation.astype("int64"), settings.seq)
        return cls(settings, training, rules_of(task, training), feed, windows)

    def stage(self, index: int) -> TorchStage:
        """One of its stages before the first step."""
        return TorchStage(self.training, index)

    def score(self, stages: Sequence[TorchStage]) -> float:
        """Mean nats a token of these stages over the windows, the last few left out; nothing is coded between them."""
        inputs, targets = self.windows
        rows = min(SCORED_ROWS, len(inputs))
        wide = [_widened(stage, rows) for stage in stages]
        losses = list[float]()
        for start in range(0, len(inputs) - rows + 1, rows):
            x = torch.from_numpy(inputs[start : start + rows])
            for stage in wide:
                (x,) = stage.forward(Microbatch(0, 0), [Block.of(x)])
            losses.append(float(self.training.loss(x, torch.from_numpy(targets[start : start + rows]))))
        return fmean(losses)


def _widened(stage: TorchStage, rows: int) -> TorchStage:
    """The same stage for so many sequences at once."""
    wide = TorchStage(replace(stage.training, rows=rows), stage.index)
    wide.load({name: Block.of(tensor) for name, tensor in stage.state().items()})
    return wide


@dataclass(frozen=True)
class Trained:
    """What came of it.

    Args:
        losses: by step.
        score: of the validation windows at the end.
        died, came: peers that were killed, and that came in the meantime.
    """

    losses: list[float]
    score: float
    died: int = 0
    came: int = 0


def alone(lesson: Lesson, tell: Tell, backwards: bool = False) -> Trained:
    """Train by a plain loop in one process: no messages, no codec, no faults.

    Args:
        backwards: add the microbatches' gradients in the opposite order: the same training to rounding.
    """
    stages = [lesson.stage(index) for index in range(lesson.rules.stages)]
    order = range(lesson.rules.batch)[:: -1 if backwards else 1]
    losses = list[float]()
    for step in range(lesson.settings.steps):
        passed = [_through(stages, lesson.feed, Microbatch(step, index)) for index in order]
        losses.append(math.fsum(passed) / lesson.rules.samples)
        norm = math.sqrt(math.fsum(stage.square(stage.sums) for stage in stages))
        for stage in stages:
            stage.apply(step, stage.sums, lesson.rules.scale(norm))
            stage.clear()
        tell(step + 1, losses[-1])
    return Trained(losses, lesson.score(stages))


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


def together(lesson: Lesson, tell: Tell, replicas: int, every_s: float) -> Trained:
    """Train by a swarm.

    Args:
        replicas: peers that begin at each stage.
        every_s: seconds from one death to the next; another peer joins half-way between. 0: no peer dies.
    """
    return run_virtual(_train(lesson, tell, replicas, every_s))


async def _train(lesson: Lesson, tell: Tell, replicas: int, every_s: float) -> Trained:
    parties = VirtualParties(VirtualNetwork(lesson.settings.seed, delay=1e-3, jitter=5e-4), lesson.rules)
    parties.start_directory()
    stages, steps, losses = lesson.rules.stages, lesson.settings.steps, dict[int, float]()
    for place in range(stages * replicas):
        parties.start_peer(f"peer{place}", lesson.stage, SECONDS, place % stages)
    trainer = parties.start_trainer("trainer", lesson.feed, 2 * stages * replicas, steps)
    churn = _Churn(parties, lesson, [f"peer{place}" for place in range(stages, stages * replicas)])
    beside = [asyncio.ensure_future(_note(trainer.view, losses, tell))]
    if every_s:
        beside.append(asyncio.ensure_future(churn.go_on(every_s)))
    try:
        await parties.tasks["trainer"]
        score = lesson.score(await _all_at(parties, steps))
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await parties.close()
    return Trained([losses[step] for step in range(1, steps + 1)], score, churn.died, churn.came)


async def _note(view: SwarmView, losses: dict[int, float], tell: Tell) -> None:
    """Take down the loss of every step as it is decided."""
    while True:
        await view.wait_for(lambda: view.head is not None and view.head.step > len(losses))
        losses[view.head.step] = view.head.loss
        tell(view.head.step, view.head.loss)


async def _all_at(parties: VirtualParties, step: int) -> list[TorchStage]:
    """One peer's stage of each, once it is at this step."""
    while True:
        held = [process.peer.replica for process in parties.peers.values() if process.peer.replica is not None]
        there = {each.index: each.stage for each in held if each.step == step}
        if len(there) == parties.rules.stages:
            return [there[index] for index in sorted(there)]
        await asyncio.sleep(SECONDS["update"])


class _Churn:
    """Peers that die and come, one after another.

    Args:
        mortal: the peers that may die; later ones may, too.
    """

    def __init__(self, parties: VirtualParties, lesson: Lesson, mortal: list[str]):
        self._parties, self._lesson, self._mortal = parties, lesson, mortal
        self._draw = random.Random(lesson.settings.seed)
        self.died = self.came = 0

    async def go_on(self, every_s: float) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(every_s / 2)
            name = self._draw.choice(self._mortal)
            self._mortal.remove(name)
            self._parties.kill(name)
            self.died += 1
            await asyncio.sleep(every_s / 2)
            self.came += 1
            self._mortal.append(f"late{self.came}")
            self._parties.start_peer(self._mortal[-1], self._lesson.stage, SECONDS)
