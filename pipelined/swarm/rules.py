"""The rules that all processes of one swarm share.

A process with other rules is refused, with both digests. They are made from what users give; see `settings`.
"""

import hashlib
from dataclasses import asdict, dataclass

import msgpack

from pipelined.errors import UsageError
from pipelined.membership.messaging.reasons import Next, Reason
from pipelined.swarm.settings import SharedSettings
from transports.rpc import Rejected


class OtherModel(UsageError):
    """The swarm trains another model than this process."""

    def __init__(self, own_digest: str, swarm_digest: str):
        super().__init__(
            f"this swarm has another model, code or tokenizer (here: {own_digest}, there: {swarm_digest}); use theirs"
        )


def stop_if_refused(rejection: Rejected) -> None:
    """Raises UsageError: the leader rejects this process for good, because its model or its protocol differs."""
    reason = Reason.of(rejection)
    if reason is not None and reason.next is Next.STOP:
        raise UsageError(f"the leader refuses this process: {rejection}; use its release and its model") from rejection


@dataclass(frozen=True)
class Rules:
    """How a swarm trains.

    Args:
        model: digest of model, data, code and tokenizer.
        stages: of the model.
        batch: microbatches of a step.
        samples: divisor that turns sums of gradients and losses into means (tokens of a step, for example).
        clip: largest norm of the mean gradient; 0 does not clip.
        lease_s: seconds without a heartbeat after which a member is removed.
        rebalance_s: seconds from one comparison of the stages' loads to the next; 0: peers stay at their stages.
        codec: of the tensors between stages, by `transports.find_codec`; "": none.
        sums_codec: the same for the sums of gradients.
        chunk_bytes: largest chunk of these sums, in bytes before it is coded.
        delayed: whether a gradient is applied one step late, and summed while the next step is computed.
        eval_every: steps between evaluations; 0: only after the last.
        eval_batch: microbatches of validation data, with the indices after those of a step; 0: no evaluation.
    """

    model: str
    stages: int
    batch: int
    samples: float
    clip: float = 0.0
    lease_s: float = SharedSettings.lease
    rebalance_s: float = SharedSettings.rebalance
    codec: str = ""
    sums_codec: str = ""
    chunk_bytes: int = 4 << 20
    delayed: bool = False
    eval_every: int = 0
    eval_batch: int = 0

    def __post_init__(self) -> None:
        for name in ("stages", "batch", "samples", "lease_s", "chunk_bytes"):
            if not getattr(self, name) > 0:
                raise UsageError(f"a swarm's rules need {name} above 0 (it is {getattr(self, name)}); raise it")
        for name in ("eval_every", "eval_batch"):
            if getattr(self, name) < 0:
                raise UsageError(f"a swarm's rules need {name} of at least 0 (it is {getattr(self, name)}); raise it")

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that depend on all settings."""
        return hashlib.blake2b(msgpack.packb(sorted(asdict(self).items())), digest_size=8).hexdigest()

    def evaluates(self, step: int, is_last: bool) -> bool:
        """Whether the parameters after this many steps are evaluated; `is_last`: no further step will be taken."""
        is_due = is_last or (self.eval_every > 0 and step % self.eval_every == 0)
        return self.eval_batch > 0 and step > 0 and is_due

    def scale(self, norm: float) -> float:
        """The factor of the sums in the update.

        Args:
            norm: of the summed gradient, over all stages.
        """
        mean = norm / self.samples
        shrink = self.clip / mean if self.clip and mean > self.clip else 1.0
        return shrink / self.samples
