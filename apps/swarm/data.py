"""The data of a swarm's trainers: a microbatch's tokens and labels, from its name and the seed alone. No torch.

So any trainer can make a microbatch again after its first trainer has failed. The sequences of a step, and of an
evaluation, are those of every other program here (`Batches`, `validation_windows`).
"""

from dataclasses import dataclass

import numpy as np

from apps.common.flags.command_flags import TextFlags
from apps.common.lm.data.batches import Batches, Rows, validation_windows
from apps.common.lm.data.text import Text, read_text
from apps.swarm.config import SwarmTask, TrainingConfig
from apps.swarm.families import cut_of
from pipelined.swarm.stages.swarm_stage import Microbatch

Arrays = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class MicrobatchFeed:
    """The data of a swarm; the same in every process that has the same text.

    Args:
        batches: the sequences that are trained on, step by step.
        windows: those that are scored, in the microbatches after a step's.
    """

    batches: Batches
    windows: Rows

    @property
    def held_out(self) -> int:
        """Microbatches of validation data; the last may have fewer sequences."""
        return -(-len(self.windows[0]) // self.batches.batch)

    def __call__(self, microbatch: Microbatch) -> tuple[Arrays, Arrays]:
        """The first stage's inputs and the last stage's labels: token ids, int64, (B, T) each.

        The last validation microbatch may have fewer than B sequences. Then labels are shorter than inputs, and inputs
        are padded with the first sequence.

        Raises:
            ValueError: there is no such microbatch.
        """
        step, index = microbatch.step, microbatch.index
        microbatches = self.batches.microbatches
        if step < 0 or not 0 <= index < microbatches + self.held_out:
            fact = f"step: {step}, index: {index}, microbatches: {microbatches}, of validation data: {self.held_out}"
            raise ValueError(f"there is no such microbatch ({fact})")
        inputs, labels = self.batches.rows(step, index) if index < microbatches else self._windows(index - microbatches)
        return (np.ascontiguousarray(inputs),), (np.ascontiguousarray(labels),)

    def _windows(self, number: int) -> Rows:
        """The windows of a microbatch of validation data, numbered from 0."""
        rows = self.batches.batch
        inputs, labels = (part[number * rows :][:rows].astype(np.int64) for part in self.windows)
        padding = np.repeat(inputs[:1], rows - len(inputs), axis=0)
        return np.concatenate([inputs, padding]), labels


def feed_of(text: Text, rows: int, sequence: int, microbatches: int, seed: int) -> MicrobatchFeed:
    """The feed of a training and its evaluations.

    Args:
        rows: sequences in a microbatch, B.
        sequence: tokens a sequence, T.
        microbatches: microbatches a step.
    Raises:
        UsageError: an epoch of this text would hold less than one step, there is nothing to score, or it is packed.
    """
    text.require_running("a swarm")
    batches = Batches(text.train, sequence, rows, microbatches, seed)
    return MicrobatchFeed(batches, validation_windows(text.validation, sequence, text.windows))


def read_task(settings: TrainingConfig, files: TextFlags) -> tuple[Text, SwarmTask, MicrobatchFeed]:
    """The text that flags name, and what is trained on it.

    Raises:
        UsageError: as `read_text` and `feed_of`, or the model cannot be cut into its stages.
    """
    text = read_text(files.data, files.tokenizer, (), settings.eval_windows)
    task, feed = task_and_feed(settings, text, text.tokenizer.vocab_size)
    cut_of(settings, task.vocabulary)
    return text, task, feed


def task_and_feed(settings: TrainingConfig, text: Text, vocabulary: int) -> tuple[SwarmTask, MicrobatchFeed]:
    """What is trained on this text, as the directory keeps it, and its microbatches.

    Args:
        vocabulary: symbols of the model.
    Raises:
        UsageError: as `feed_of`.
    """
    microbatches = settings.batch // settings.microbatch
    feed = feed_of(text, settings.microbatch, settings.seq, microbatches, settings.seed)
    return SwarmTask(settings, vocabulary, text.digest, feed.held_out), feed
