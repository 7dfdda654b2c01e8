"""The update rule of one worker: which versions of its weights a microbatch uses, and when each update is made.

No torch, clock or asyncio. The caller reports each event, and carries out the decisions in their order before the next
event: training with tensors (`pipelined.training.segments`), the simulator with seconds.

| event | decisions |
|---|---|
| before the forward of a microbatch | `Apply` the updates that make its versions; then it uses these versions |
| after the backward of a microbatch | `Collect` a complete gradient; `Apply` its update if the next forward uses it |
| drain: no microbatch is under way | `Apply` every update that is left |

Weights of one stage only are updated before the stage does anything else. Weights that several stages share (a tied
embedding) must be equal on all of them for every timing: a microbatch uses a version that depends only on its number,
and updates wait until that version is needed. With a flush the drain applies one update, behind all microbatches: it
is the only event to report, as all forwards use one version and the program says when its gradients are summed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipelined.programs.staleness import shared_version
from pipelined.programs.updates.bucket_names import Stages
from pipelined.schedules import StageMap


@dataclass(frozen=True, slots=True)
class Collect:
    """Take the gradient that a bucket has accumulated for this update; start its sum over its holders."""

    bucket: Stages
    update: int


@dataclass(frozen=True, slots=True)
class Apply:
    """Wait for the sum of an update, then make version `update + 1` of the bucket's weights."""

    bucket: Stages
    update: int


@dataclass(frozen=True, slots=True)
class MicrobatchWeights:
    """The weights of one microbatch.

    Args:
        applies: what to apply before its forward, in order.
        versions: by bucket the version of its forward and backward.
        staleness: updates between this version and the one from which its gradient is subtracted; 0 if the stage has
            nothing to train.
    """

    applies: tuple[Apply, ...]
    versions: Mapping[Stages, int]
    staleness: int


class UpdateRule:
    """The updates of one worker in one segment.

    Args:
        stage_map: the stage map of the segment.
        buckets: the buckets of parameters that the worker holds, each by the stages that hold it.
        oldest: by bucket the oldest version that still exists: 0, or a negative number if versions from before the
            segment are kept. A bucket without an entry has 0.
    """

    def __init__(self, stage_map: StageMap, buckets: Iterable[Stages], oldest: Mapping[Stages, int] | None = None):
        self._stage_map = stage_map
        self._updates = stage_map.updates
        self._oldest = dict(oldest or {})
        self._newest = dict.fromkeys(buckets, 0)
        self._backwards = 0

    def before_forward(self, microbatch: int) -> MicrobatchWeights:
        """The weights for the next forward."""
        applies: list[Apply] = []
        versions = {}
        for bucket in self._newest:
            if not self._follows_order(bucket):
                version = shared_version(self._updates, microbatch, self._stage_map.alive_limit(bucket[0]) - 1)
                applies += self._up_to(bucket, version)
                versions[bucket] = max(version, self._oldest.get(bucket, 0))
            else:
                versions[bucket] = self._newest[bucket]
        own_bucket = min(versions, key=len, default=None)
        staleness = 0 if own_bucket is None else microbatch // self._updates.every - versions[own_bucket]
        return MicrobatchWeights(tuple(applies), versions, staleness)

    def after_backward(self) -> list[Collect | Apply]:
        """What to do after a whole backward, or after the weight half of one."""
        self._backwards += 1
        update, remainder = divmod(self._backwards, self._updates.every)
        if remainder or self._updates.flushes:
            return []
        decisions: list[Collect | Apply] = []
        for bucket in self._newest:
            decisions.append(Collect(bucket, update - 1))
            if self._follows_order(bucket):
                decisions += self._up_to(bucket, update)
        return decisions

    def drain(self) -> list[Apply]:
        """What to do after the last backward of the segment."""
        updates_made = 1 if self._updates.flushes else self._backwards // self._updates.every
        return [apply for bucket in self._newest for apply in self._up_to(bucket, updates_made)]

    def _follows_order(self, bucket: Stages) -> bool:
        """Whether forwards use the newest version, instead of a version that depends only on their number."""
        return self._updates.delay is None and len(bucket) == 1

    def _up_to(self, bucket: Stages, version: int) -> list[Apply]:
        """The updates that make a version, from the newest on."""
        applies = [Apply(bucket, update) for update in range(self._newest[bucket], version)]
        self._newest[bucket] += len(applies)
        return applies
