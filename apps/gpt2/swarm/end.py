"""How a swarm's job ends on rank 0: every stage's state is brought together, saved, exported and sampled from.

The rule: what stands is saved before anything is made of it, which may fail.
"""

import asyncio
from dataclasses import dataclass

from apps.gpt2.swarm.job import SwarmJob
from apps.gpt2.train import compare
from apps.lm.data.ngram import score_ngrams
from apps.lm.data.text import Text
from apps.lm.models.gpt2 import GPT2
from apps.swarm.export import Say, Wish
from apps.swarm.weights import Weights
from pipelined.state import saved
from pipelined.state.observer import Visited


@dataclass(frozen=True)
class Outcome:
    """What a training came to.

    Args:
        visited: every stage's state, at one point; empty where nothing is to be made of it.
    """

    job: SwarmJob
    text: Text
    visited: Visited

    async def save(self) -> None:
        """Save every stage; nothing where there is no directory for that."""
        config, identity = self.job.config, self.job.model.identity()
        if config.checkpoint is not None:
            for mark, state in self.visited:
                told = identity, config.keep, self.text.digest
                await asyncio.to_thread(saved.save, config.checkpoint, mark, state, *told)

    async def tell(self, loss: float | None, say: Say) -> None:
        """Compare, export and sample, as far as it was asked for.

        Args:
            loss: of the validation text.
        """
        config, text, context = self.job.config, self.text, self.job.subject.seq
        if loss is not None:
            counted = text.train, text.validation, context, text.tokenizer.vocab_size
            say(compare(loss, await asyncio.to_thread(score_ngrams, *counted)))
        if not self.visited:
            return
        weights = Weights.of_stages(GPT2(self.job.model), [state for _, state in self.visited])
        await Wish(config.export, config.sample, config.prompt, context, config.seed).fulfil(
            weights, text.tokenizer, say
        )
