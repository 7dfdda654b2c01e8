"""The settings of a swarm that its programs and its functions take, with their only defaults. No torch.

The docstring below a field is also the help of its flag.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipelined.errors import UsageError, refuse_below
from pipelined.membership.directory.limits import refuse_lease_length
from pipelined.training.exchange.compression import NONE, check_codec

GRACE_S = 20.0
"""Clouds reclaim a machine 30 s after their notice, or later; the other 10 s are for handing over and saving."""


@dataclass(frozen=True)
class SharedSettings:
    """What all processes of a swarm have in common besides the model and its training."""

    compress: str = NONE
    """Codec for activations and gradients between stages: none, blockwise8, bf16, fp16 or zstd."""
    compress_sums: str = NONE
    """Codec for the sums of gradients."""
    lease: float = 3.0
    """Seconds without a heartbeat after which a member is removed."""
    rebalance: float = 60.0
    """Seconds between two comparisons of the stages' loads; 0: peers stay at their stage."""
    exact_sums: bool = False
    """Sum gradients exactly: all parameters have the same bits with any number of peers and trainers, whichever
    of them fail. Each peer computes with one thread."""

    def check_shared(self, spelled: Callable[[str], str] = str, *, delayed: bool = False) -> None:
        """Refuse what no swarm can do.

        Args:
            spelled: a setting's name as the user gives it.
            delayed: whether updates are delayed.
        Raises:
            UsageError: an unknown codec, a number out of range, or exact sums with what rounds them.
        """
        refuse_below(0, spelled("rebalance"), self.rebalance)
        refuse_lease_length(spelled("lease"), self.lease)
        exact = spelled("exact_sums")
        for name in ("compress", "compress_sums"):
            check_codec(codec := getattr(self, name), spelled(name))
            if self.exact_sums and codec != NONE:
                fact = f"{exact} needs {spelled(name)} {NONE} (it is {codec})"
                raise UsageError(f"{fact}: a codec rounds what peers send")
        if self.exact_sums and delayed:
            fact = "a step's sum is complete too late to compute the step again"
            raise UsageError(f"{exact} needs updates without delay: {fact}; leave {spelled('delayed_updates')} out")


@dataclass(frozen=True)
class PeerSettings:
    """The settings of one peer."""

    stage: int | None = None
    """Stage to serve. Default: the stage that the leader assigns."""
    device: str = "cpu"
    """Where to compute: cpu, cuda:0, …"""
    checkpoint: Path | None = None
    """Folder to save the stage in and to load it from; other peers may share it."""
    save_every: int = 50
    """Steps from one save to the next, the same for all peers; 0 saves only at the end and on a stop request."""
    grace: float = GRACE_S
    """Seconds that the last peer of a stage keeps serving after SIGTERM, until another peer has its state."""

    def check_peer(self, spelled: Callable[[str], str] = str) -> None:
        """Refuse what no peer can do. Raises UsageError: a number is negative; `spelled` as in `check_shared`."""
        refuse_below(0, spelled("stage"), self.stage or 0)
        refuse_below(0, spelled("save_every"), self.save_every, "0 saves only at the end")
        refuse_below(0, spelled("grace"), self.grace)


@dataclass(frozen=True)
class TrainerSettings:
    """The settings of one trainer."""

    slots: int = 4
    """Microbatches in flight at once."""
    resume: bool = False
    """Resume at the latest step that every stage has saved; wait until peers with that step join."""
