"""A microbatch on its way through a trainer: what was given, and how taking it through can end.

The one rule: what a conductor or a peer says is read field by field, and what cannot be read is no answer.
"""

import math
from typing import Any, NamedTuple

from pipelined.swarm.protocol import field, whole
from pipelined.swarm.stages.stage import Microbatch
from transports.rpc import Answer, Refusal


class Given(NamedTuple):
    """A microbatch that the conductor gives.

    Args:
        count: the stages that are to count it; none: it is validation data.
        lineage: of the parameters that it is for.
        revision: of the head at which it was given; past that it is of no use.
    """

    which: Microbatch
    count: set[int]
    lineage: str
    revision: int


class Stale(Exception):
    """The microbatch's step is past."""


class Spoilt(Exception):
    """A microbatch's numbers are none, or not finite."""


def read_given(note: Any) -> Given:
    """What the conductor gave. Raises Refusal: it is no microbatch."""
    stages, lineage = field(note, "stages"), field(note, "lineage")
    if type(stages) is not list or any(type(stage) is not int for stage in stages) or type(lineage) is not str:
        raise Refusal("malformed", why=f"no stages, or no lineage (got: {stages!r:.80}, {lineage!r:.40})")
    which = Microbatch(whole(note, "step"), whole(note, "index"))
    return Given(which, set(stages), lineage, whole(note, "revision"))


def read_losses(answer: Answer, samples: int) -> list[float]:
    """The losses of so many samples of validation data.

    Raises:
        Spoilt: it is none of that.
    """
    losses = [loss for block in answer.blocks if block.dtype == "float64" for loss in block.numpy().ravel().tolist()]
    if len(losses) != samples or not all(map(math.isfinite, losses)):
        raise Spoilt(f"an evaluation answered with no losses (finite: {sum(map(math.isfinite, losses))} of {samples})")
    return losses
