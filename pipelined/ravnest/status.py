"""The status of Ravnest: its clusters, how far they are, and the nodes that wait."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pipelined.aio.clock import RealClock
from pipelined.errors import UsageError
from pipelined.membership.directory import Directory, Snapshot
from pipelined.membership.polls import poll_status
from pipelined.membership.task_record import TASK
from pipelined.ravnest.planning.ring_layout import rings_between, round_bytes
from pipelined.ravnest.planning.stage_sizes import LayerSize
from pipelined.ravnest.records.generation import AWAITED_STATE, Generation
from pipelined.ravnest.records.progress import ClusterProgress
from pipelined.ravnest.records.view import RavnestView


@dataclass(frozen=True)
class TrainedSizes:
    """The sizes from which a place's microbatches and bytes are computed.

    Args:
        microbatches: microbatches a step.
        layers: the sizes of the model's layers.
    """

    microbatches: int
    layers: Sequence[LayerSize]


@dataclass(frozen=True)
class RavnestStatus:
    """The status of Ravnest.

    Args:
        generation: None: none was formed yet.
        progress: by cluster, of those that have completed a step.
        round: committed rounds of averaging.
        waiting: nodes without a cluster, in the order in which they joined; see `wait_text`.
        missing: nodes that left their cluster before it was done.
        unreadable: why a record of the directory cannot be read, by key.
        sizes: None: what is trained cannot be read.
        age_s: seconds since the directory replied.
        refused: rounds before the last committed one that were refused.
        wait_text: what these nodes wait for, in words; "": nothing.
    """

    generation: Generation | None
    progress: Mapping[int, ClusterProgress]
    round: int
    waiting: Sequence[str]
    missing: Sequence[str]
    unreadable: Mapping[str, str]
    sizes: TrainedSizes | None = None
    age_s: float = 0.0
    refused: int = 0
    wait_text: str = ""

    @classmethod
    def of(cls, view: RavnestView, sizes: TrainedSizes | None) -> "RavnestStatus":
        """What a view shows."""
        generation = view.generation
        waiting = [node.name for node in view.free_nodes]
        wait_text = view.wait_text if waiting else ""
        if generation is None:
            return cls(None, {}, 0, waiting, [], view.unreadable, sizes, wait_text=wait_text)
        records = ((cluster, view.progress.get(f"{cluster}")) for cluster in range(len(generation.clusters)))
        progress = {cluster: record for cluster, record in records if record and record.generation == generation.number}
        missing = view.missing(generation)
        remaining = view.with_remaining(generation)
        rounds = view.rounds_of(generation)
        refused = sum(round_ < rounds for round_ in view.refused(generation))
        return cls(
            remaining, progress, rounds, waiting, missing, view.unreadable, sizes, refused=refused, wait_text=wait_text
        )

    @property
    def furthest_progress(self) -> ClusterProgress | None:
        """The progress of the cluster that is furthest; None: no step is completed."""
        return max(self.progress.values(), key=lambda progress: progress.step, default=None)

    def to_dict(self) -> dict[str, Any]:
        """The status as JSON shows it; docs/ravnest.md has the fields."""
        furthest = self.furthest_progress
        averaged_bytes = iter(self._averaged_bytes())
        clusters = self.generation.clusters if self.generation else []
        return {
            "step": furthest.step if furthest else None,
            "loss": furthest.loss if furthest else None,
            "round": self.round,
            "waiting": list(self.waiting),
            "waits_for": self.wait_text or None,
            "missing": list(self.missing),
            "clusters": [self._cluster(n, [next(averaged_bytes) for _ in stages]) for n, stages in enumerate(clusters)],
            "unreadable": dict(self.unreadable),
            "age_s": self.age_s,
            "past_s": self.age_s,  # its former name
        }

    def _cluster(self, cluster: int, averaged: Sequence[int | None]) -> dict[str, Any]:
        """One cluster, with the bytes that each of its places has sent in rounds."""
        assert self.generation is not None
        stages = self.generation.clusters[cluster]
        progress = self.progress.get(cluster)
        names = {backup.stage: backup.holder.name for backup in self.generation.backups if backup.cluster == cluster}
        delays = progress.staleness if progress and len(progress.staleness) == len(stages) else [None] * len(stages)
        trained = self._microbatches(cluster)
        return {
            "step": progress.step if progress else None,
            "loss": progress.loss if progress else None,
            "step_s": progress.seconds if progress else None,
            "done": bool(progress and progress.digest),
            "waits_for": AWAITED_STATE if self.generation.is_late(cluster) and not self.round else None,
            "places": [
                {
                    "node": place.holder.name,
                    "backup": names.get(stage),
                    "layers": [place.first, place.end],
                    "microbatches": trained,
                    "alive": place.alive,
                    "staleness": delay,
                    "averaged_bytes": sent,
                }
                for stage, (place, delay, sent) in enumerate(zip(stages, delays, averaged, strict=True))
            ],
        }

    def _microbatches(self, cluster: int) -> int | None:
        """What each place of a cluster has trained since this generation was formed, in completed steps."""
        assert self.generation is not None
        progress = self.progress.get(cluster)
        own_step = self.generation.own_step(cluster, progress.step) if progress else -1
        return None if self.sizes is None or own_step is None else (own_step + 1) * self.sizes.microbatches

    def _averaged_bytes(self) -> list[int | None]:
        """Bytes that each place has sent in the committed rounds of this generation, by the ring's closed form."""
        clusters = self.generation.clusters if self.generation else []
        places = sum(map(len, clusters))
        if not clusters or self.sizes is None or clusters[0][-1].end != len(self.sizes.layers):
            return [None] * places
        layers = self.sizes.layers
        sent_bytes = round_bytes(rings_between(clusters, layers), layers, places)
        return [(self.round - self.refused) * nbytes for nbytes in sent_bytes]


async def follow_status(
    directory: Directory, every_s: float, sizes_of: Callable[[bytes], TrainedSizes]
) -> AsyncIterator[RavnestStatus]:
    """Poll the status; see `poll_status`.

    Args:
        sizes_of: reads the record of what is trained; raises UsageError if it cannot.
    """
    view = RavnestView(directory, RealClock())

    async def read_status(snapshot: Snapshot) -> RavnestStatus:
        view.load(snapshot)
        sizes = None
        with suppress(UsageError, KeyError):
            sizes = sizes_of(snapshot.entries[TASK].value)
        return RavnestStatus.of(view, sizes)

    async for last, age_s in poll_status(directory, read_status, every_s):
        yield replace(last, age_s=age_s)
