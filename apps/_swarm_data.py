"""What a swarm's trainers train on: a microbatch's tokens and labels, from its name and the seed alone.

So anybody can find a microbatch again whose trainer is gone. Which sequences make up a step is as for every other
program here (`Batches`). No torch; it must not know of peers.
"""

from dataclasses import dataclass

import numpy as np

from apps._batches import Batches
from apps._text import Text
from pipelined.swarm.stage import Microbatch

Arrays = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class MicrobatchFeed:
    """The training data of a swarm; the same answers in every process that has the same text.

    Args:
        batches: the sequences, step by step.
    """

    batches: Batches

    def __call__(self, which: Microbatch) -> tuple[Arrays, Arrays]:
        """The first stage's inputs and the last stage's labels: token ids, int64, (B, T) each.

        Raises:
            ValueError: a step has no such microbatch.
        """
        if which.step < 0 or not 0 <= which.index < self.batches.microbatches:
            fact = f"step: {which.step}, index: {which.index}, microbatches: {self.batches.microbatches}"
            raise ValueError(f"there is no such microbatch ({fact})")
        inputs, labels = self.batches.rows(*which)
        return (np.ascontiguousarray(inputs),), (np.ascontiguousarray(labels),)


def feed_of(text: Text, rows: int, sequence: int, microbatches: int, seed: int) -> MicrobatchFeed:
    """The feed of a training.

    Args:
        rows: sequences in a microbatch, B.
        sequence: tokens a sequence, T.
        microbatches: of a step.
    Raises:
        UsageError: an epoch of this text would hold less than one step.
    """
    return MicrobatchFeed(Batches(text.train, sequence, rows, microbatches, seed))
