"""Groups of flags that several commands of Ravnest have, and what they refuse. No torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from apps.common.flags.command_flags import FinalFlags
from apps.ravnest.families.registry import find_family
from pipelined.errors import UsageError, refuse_below
from pipelined.schedules import MAX_AHEAD


@dataclass(frozen=True)
class FormingFlags:
    """How clusters are formed of nodes."""

    clusters: int | None = None
    """Clusters, each with the whole model. Default: the most that differ by at most --balance of their mean."""
    balance: float = 0.25
    """Where --clusters is open: the largest spread of the clusters' seconds, as a part of their mean."""
    objective: Literal["transfer", "rate"] | None = None
    """transfer: equal transfer times, equal shares of RAM; rate: the fastest. Default: rate where speeds are known."""
    ahead: int | None = None
    """Microbatches alive in a cluster's first stage (K). Default: what keeps all stages busy, as far as it fits."""
    backups: int = 0
    """Backup nodes, the last to join: each repeats what one of the least reliable nodes does, and replaces it."""

    def check(self) -> None:
        """Raises UsageError: no clusters can be formed so. The owner calls this: the error names its command."""
        for name in ("clusters", "ahead"):
            if (value := getattr(self, name)) is not None:
                refuse_below(1, f"--{name}", value)
        if self.ahead is not None and self.ahead > MAX_AHEAD:
            fact = f"--ahead must be at most {MAX_AHEAD} (it is {self.ahead})"
            raise UsageError(f"{fact}; lower it, or leave it out: the plan takes what keeps all stages busy")
        refuse_below(0, "--balance", self.balance)
        refuse_below(0, "--backups", self.backups)


@dataclass(frozen=True)
class NewcomerFlags:
    """What becomes of nodes that come while clusters train."""

    newcomers: Literal["backup", "cluster"] | None = None
    """backup: nodes that come later become backups first; cluster: clusters alone. Default: backup with --backups."""


@dataclass(frozen=True)
class AverageFlags(FinalFlags):
    """What becomes of the average at the end."""

    export: Path | None = None
    """Folder for the final model in Hugging Face's format, which the nodes send; of --preset digits, its values."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return self.export is None and not self.sample

    def check_preset(self, preset: str) -> None:
        """Raises UsageError: it cannot be done, of this model or at all."""
        self.check()
        find_family(preset).check(sample=self.sample)


def check_clusters(forming: FormingFlags, nodes: int) -> None:
    """Raises UsageError: no node is left to train, or more clusters are asked for than there will be nodes."""
    if nodes <= forming.backups:
        fact = f"no node is left to train (nodes: {nodes}, --backups: {forming.backups})"
        raise UsageError(f"{fact}; take fewer --backups, or add nodes")
    if (clusters := forming.clusters or 1) > nodes - forming.backups:
        backups = f", --backups: {forming.backups}" if forming.backups else ""
        fact = f"more clusters than nodes (--clusters: {clusters}, nodes: {nodes}{backups})"
        raise UsageError(f"{fact}; take fewer --clusters, or add nodes")
