"""Evaluation and sampling: forward passes through the pipeline, without training.

Every pipe of every group evaluates its share of the windows. Window i of a pipe is to pass stage s at time i + s, and
each rank works in the order of these times: so all members of a team do the same passes in one order, and what a pass
waits for always comes before it. A stage sends its next activation when its last one is received.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from collectives import Group, all_reduce
from pipelined.training.exchange.parcels import Parcel, Tree, open_tree, pack_tree, tensors_of
from pipelined.training.job.model import CountedLoss, Model
from pipelined.training.job.rank_context import RankContext
from pipelined.training.stages.key_values import KeyValueCache
from pipelined.training.stages.stage import Stage
from pipelined.training.stages.team_stage import TeamStage
from transports import Nursery

Window = tuple[torch.Tensor, torch.Tensor]
"""Inputs and targets, each (B, T)."""
ScoreFunction = Callable[[Any, Any], Any]
"""Scores a window from its outputs and targets: the mean, or (sum, count), as a loss does."""


@dataclass(frozen=True)
class EvaluationContext(RankContext):
    """The context of a rank with the stages that a trainer builds; the substitutes of a measurement cannot evaluate."""

    stages: Mapping[int, Stage | TeamStage]


async def evaluate(
    context: EvaluationContext,
    model: Model,
    windows: Sequence[Window],
    world: Group,
    *,
    tag: int,
    score: ScoreFunction | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> float:
    """Mean loss, or mean of another score, over all windows, the same float on every rank and in every arrangement.

    A window counts as many tokens as its targets have, or what the loss counts where it returns (sum, count).

    Args:
        windows: the same on every rank.
        tag: distinguishes this evaluation's messages from another's.
        score: None: the model's loss. For another score every member of a team holds the outputs of a window whole.
        on_progress: called with the number of forwards that this rank has done, and their total.
    """
    totals = np.zeros((2, len(windows)))
    passes = _passes_in_order(context, len(windows))
    sends: dict[tuple[int, int], asyncio.Task[None]] = {}
    async with Nursery() as tasks:
        for done, (pipe, stage, window) in enumerate(passes, 1):
            inputs, targets = windows[window]
            x = inputs if stage == 0 else await _receive(context, pipe, stage - 1, ("evaluate", tag, stage, window))
            if stage == context.plan.depth - 1:
                totals[:, window] = await _score(context, model, x, targets, score)
            else:
                y = await _forward(context, stage, x)
                if (pipe, stage) in sends:
                    await sends[pipe, stage]
                sending = _send(context, pipe, stage + 1, ("evaluate", tag, stage + 1, window), y)
                sends[pipe, stage] = tasks.create_task(sending)
            on_progress(done, len(passes))
    await all_reduce(world, totals)
    losses, counts = totals.tolist()
    return float(sum(losses)) / sum(counts)


def _passes_in_order(context: RankContext, windows: int) -> list[tuple[int, int, int]]:
    """This rank's passes, (pipe, stage, window), in the order of their times."""
    pipes = [_pipe_of_window(context, window) for window in range(windows)]
    timed_passes = []
    for pipe, stage in context.plan.stage_map.held_by(context.worker):
        own_windows = [window for window, pipe_of_window in enumerate(pipes) if pipe_of_window == (context.group, pipe)]
        timed_passes += [(number + stage, window, pipe, stage) for number, window in enumerate(own_windows)]
    return [(pipe, stage, window) for _, window, pipe, stage in sorted(timed_passes)]


def _pipe_of_window(context: RankContext, window: int) -> tuple[int, int]:
    """The (group, pipe) that evaluates a window."""
    width = context.plan.width
    return window % width, window // width % context.plan.stage_map.pipes


async def _score(
    context: EvaluationContext, model: Model, x: Any, targets: Tree, score: ScoreFunction | None
) -> tuple[float, float]:
    """The summed loss of a window, or its summed score, and the count; a team's other members return zeros."""
    last_stage = context.stages[context.plan.depth - 1]
    if isinstance(last_stage, TeamStage) and score is None:
        return await _compute(context, lambda: last_stage.score(x, targets))
    output = await _compute(context, lambda: last_stage.evaluate(x))
    if isinstance(output, Parcel):  # of a team: each member has it whole
        if context.member:
            return 0.0, 0.0
        (output,) = output.tensors
    device = torch.device(context.executor.device)
    return await _compute(context, lambda: _sum_of_loss(score or model.loss, *open_tree((output, targets), device)))


def _sum_of_loss(score: ScoreFunction, output: Tree, targets: Tree) -> tuple[float, float]:
    loss = CountedLoss.of(score(output, targets))
    if loss.count is not None:
        return float(loss.total.detach()), loss.count
    tokens = tensors_of(targets)[0].numel()
    return float(loss.total.detach()) * tokens, float(tokens)


async def _forward(context: EvaluationContext, stage: int, x: Any, past: KeyValueCache | None = None) -> Parcel:
    output = await _compute(context, lambda: context.stages[stage].evaluate(x, past))
    if isinstance(output, Parcel):  # of a team
        return output
    return await _compute(context, lambda: pack_tree(output))


async def _send(context: RankContext, pipe: int, stage: int, key: tuple[int | str, ...], parcel: Parcel) -> None:
    await context.actor.transport.send(context.holder(pipe, stage), key, *parcel.tensors, note=parcel.note)


async def _receive(context: RankContext, pipe: int, stage: int, key: tuple[int | str, ...]) -> Any:
    return await context.actor.receive(context.holder(pipe, stage), key)


async def _compute(context: RankContext, work: Callable[[], Any]) -> Any:
    return (await context.compute("evaluate", work))[0]


async def sample(
    context: EvaluationContext,
    prompts: Sequence[Sequence[int]],
    count: int,
    sequence: int,
    pick: Callable[[torch.Tensor, int], int],
    *,
    cached: bool = False,
) -> list[list[int]]:
    """Continue prompts by `count` tokens each, all in one batch, through pipe 0 of group 0.

    The batch begins with as many tokens of each prompt as the shortest one has. Longer prompts then give their own
    tokens, one a forward, where shorter ones already choose theirs; so no prompt is padded.

    Args:
        prompts: at least one, each of at least one token.
        sequence: the context length of the model, in tokens.
        pick: chooses a token from the logits (V,) of the last position and the number of tokens that its prompt chose
            before.
        cached: keep keys and values of the tokens before; the model's attentions must call `with_past`.
    Returns: prompts and continuations on the ranks that hold stage 0; an empty list elsewhere.
    Cost: D messages a forward, one after another; `count` forwards, and one for each token that the longest prompt has
        more than the shortest. With `cached` each token is computed once, for the memory of
        `KeyValueCache.nbytes`. Without it, and beyond the context length, where every token has a new position each
        time, each forward is of all tokens of the context.
    """
    if context.group:
        return []
    rows = [list(prompt) for prompt in prompts]
    lengths = [len(prompt) for prompt in prompts]
    stages = [stage for pipe, stage in context.plan.stage_map.held_by(context.worker) if pipe == 0]
    pasts = {stage: KeyValueCache() if cached else None for stage in stages}
    for position in range(min(lengths), max(lengths) + count if count else 0):
        choose = partial(_choose, pick, [position - length for length in lengths])
        for stage, past in pasts.items():
            if past and position > sequence:
                past.forget()
            start = max(position - sequence, 0) + (past.length if past else 0)
            tokens = [row[start:position] for row in rows]  # only the ranks of stage 0 have the chosen tokens, too
            x = await _receive(context, 0, stage - 1, ("sample", position, stage)) if stage else torch.tensor(tokens)
            _send_sampled(context, stage, position, await _forward(context, stage, x, past), choose)
        if 0 in pasts:
            await _append_chosen(context, rows, position)
    if 0 not in pasts:
        return []
    return [row[: length + count] for row, length in zip(rows, lengths, strict=True)]


def _send_sampled(
    context: RankContext, stage: int, position: int, y: Parcel, choose: Callable[[torch.Tensor], list[int]]
) -> None:
    """Send what a stage computed to the next one, and the tokens that the last one chose to the first."""
    if stage == context.plan.depth - 1:
        context.actor.tell(context.holder(0, 0), ("sample", position, 0), note=choose(y.tensors[0]))
    else:
        context.actor.tell(context.holder(0, stage + 1), ("sample", position, stage + 1), *y.tensors, note=y.note)


async def _append_chosen(context: RankContext, rows: Sequence[list[int]], position: int) -> None:
    """Append the tokens that the last stage chose; a prompt that is longer still gives its own."""
    message = await _receive(context, 0, context.plan.depth - 1, ("sample", position, 0))
    for row, token in zip(rows, message.note, strict=True):
        if len(row) == position:
            row.append(token)


def _choose(pick: Callable[[torch.Tensor, int], int], chosen_counts: Sequence[int], logits: torch.Tensor) -> list[int]:
    """The next token of each row of logits; 0 for one with a prompt that still gives it (its number is negative)."""
    return [pick(row[-1], count) if count >= 0 else 0 for row, count in zip(logits, chosen_counts, strict=True)]
