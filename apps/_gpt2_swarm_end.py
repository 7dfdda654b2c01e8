"""How a swarm's job ends on rank 0: every stage's state is brought together, saved, exported and sampled from.

The rule: the model is put together by parameter name, as everywhere, whatever stages it was trained in.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import torch

from apps import _sampling
from apps._gpt2_swarm_job import SwarmJob
from apps._huggingface import export
from apps._ngram import score_ngrams
from apps._text import Text
from apps._tokenizer import printable
from apps._training import compare
from pipelined.model import Model
from pipelined.swarm import saved
from pipelined.swarm.visit import Visited

Say = Callable[[str], None]
VALUE = "/value"


@dataclass(frozen=True)
class Outcome:
    """What a training came to.

    Args:
        model: as it was trained.
        visited: every stage's state, at one point.
    """

    job: SwarmJob
    text: Text
    model: Model
    visited: Visited

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """Every parameter by name."""
        tensors = {key: tensor for _, state in self.visited for key, tensor in state.items() if key.endswith(VALUE)}
        return {key.removesuffix(VALUE): tensor for key, tensor in tensors.items()}

    async def save(self) -> None:
        """Save every stage; nothing where there is no directory for that."""
        config = self.job.config
        if config.checkpoint is not None:
            for mark, state in self.visited:
                identity = self.model.identity()
                await asyncio.to_thread(saved.save, config.checkpoint, mark, state, identity, config.keep)

    async def tell(self, loss: float | None, say: Say) -> None:
        """Compare, export and sample, as far as it was asked for.

        Args:
            loss: of the validation text.
        """
        config, text = self.job.config, self.text
        if loss is not None:
            counted = text.train, text.validation, self.job.subject.seq, text.tokenizer.vocab_size
            say(compare(loss, await asyncio.to_thread(score_ngrams, *counted)))
        if config.export is not None:
            sizes = self.job.model
            await asyncio.to_thread(export, config.export, self.parameters, sizes, text.tokenizer)
            say(f"exported to {config.export}{'' if sizes.tied else ' (embedding and head apart)'}")
        if config.sample:
            say("sample:\n" + printable(text.tokenizer.decode(await asyncio.to_thread(self._sample))))

    @torch.no_grad()
    def _sample(self) -> list[int]:
        config, subject, values = self.job.config, self.job.subject, self.parameters
        dtype = next(iter(values.values())).dtype
        whole = self.model.build(range(self.model.layers), dtype, "cpu", None)
        for name, parameter in whole.named_parameters():
            parameter.copy_(values[name])
        prompt = self.text.tokenizer.encode(config.prompt).tolist()
        return _sampling.sample(whole, prompt, config.sample, subject.seq, _sampling.Picker(config.seed))
