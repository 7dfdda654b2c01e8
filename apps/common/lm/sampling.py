"""Continuing a prompt token by token. Each draw is keyed by (seed, number), so a sample can be drawn again anywhere."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from pipelined.random.keyed_random import keyed_generator
from pipelined.training.stages.key_values import KeyValueCache


@dataclass(frozen=True)
class Picker:
    """Chooses the next token from logits.

    Args:
        seed: the run's.
        temperature: divides the logits; 0 always takes the likeliest.
        top_k: how many of the likeliest tokens may be chosen; 0 allows all.
        top_p: of these, only the smallest set of most likely ones whose probabilities sum to this may be chosen.
    """

    seed: int
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 1.0

    def __call__(self, logits: torch.Tensor, number: int) -> int:
        """Choose a token.

        Args:
            logits: of one position, (V,).
            number: how many were chosen before.
        """
        if self.temperature == 0.0:
            return int(logits.argmax())
        values, tokens = logits.double().cpu().topk(min(self.top_k or len(logits), len(logits)))
        probabilities = (values / self.temperature).softmax(0)
        if self.top_p < 1.0:
            above = probabilities.cumsum(0) - probabilities  # they descend
            probabilities = probabilities.where(above < self.top_p, 0.0)
        drawn = torch.multinomial(probabilities, 1, generator=keyed_generator(self.seed, "sample", number))
        return int(tokens[drawn])


@torch.no_grad()
def sample(
    logits: Callable[[torch.Tensor], torch.Tensor], prompt: Sequence[int], count: int, context: int, pick: Picker
) -> list[int]:
    """Continue a prompt; as `pipelined.training.evaluate.sample`, in one process.

    Args:
        logits: a whole model, (1, T) ids to (1, T, V), of which the attentions keep keys and values (`with_past`).
        prompt: at least one id.
        count: how many tokens to add.
        context: the most tokens the model can look back on.
    Returns: prompt and continuation.
    """
    tokens = list(prompt)
    past = KeyValueCache()
    for number in range(count):
        if len(tokens) > context:
            past.forget()  # every position changes
        new_tokens = torch.tensor([tokens[-context:][past.length :]])
        tokens.append(pick(past.run(logits, new_tokens)[0, -1], number))
    return tokens
