"""Why a member rejects a request: each reason with its blame, and what the sender does next.

The reason is a word or a phrase on the wire. A trainer acts on `Next`. A leader acts on `Blame`: a rejection counts as
a failure of the member that sent it unless neither end is at fault, and a member with several failures is evicted.
"""

from enum import Enum, StrEnum

from transports.rpc import Rejected, reasons


class Blame(Enum):
    """Which end of a rejected request is at fault."""

    SENDER = "sender"
    RECEIVER = "receiver"
    NEITHER = "neither"


class Next(Enum):
    """What the sender does after a rejection."""

    RETRY = "sends it again after a pause"
    OTHERS = "sends it to other members first"
    ELSEWHERE = "sends it to another member; a trainer bans this one until it announces itself again"
    DROP = "drops the work, which has no use any more"
    ROUND = "the leader makes another round"
    STOP = "ends with exit code 2, if the leader rejects it"


class Reason(StrEnum):
    """Why a request was rejected. Compare with `Rejected.reason`, which is text off the network.

    Attributes:
        blame: the end that is at fault.
        next: what the sender does.
        meaning: one sentence for readers.
    """

    blame: Blame
    next: Next
    meaning: str

    # a member is elsewhere than the sender knows; neither is at fault
    WRONG_INCARNATION = "wrong incarnation", Blame.NEITHER, Next.OTHERS, "The receiver has joined again since."
    NO_STAGE = "no stage", Blame.NEITHER, Next.OTHERS, "The receiver holds no stage at the moment."
    STEP_PASSED = "step passed", Blame.NEITHER, Next.DROP, "The request is of an earlier step than the receiver's."
    BEHIND = "behind", Blame.NEITHER, Next.OTHERS, "The request is of a later step than the receiver's."
    OTHER_LINEAGE = "other lineage", Blame.NEITHER, Next.OTHERS, "The receiver has other parameters at this step."
    OLD_ROUND = "old round", Blame.NEITHER, Next.ROUND, "The receiver has received a request of a later round."
    LEFT = "left", Blame.NEITHER, Next.OTHERS, "The receiver gave up this stage while the request waited."
    NOT_LEADING = "not leading", Blame.NEITHER, Next.RETRY, "The receiver is not the leader."
    NOT_KEPT = "not kept", Blame.NEITHER, Next.ELSEWHERE, "The donor does not keep this state or total any more."
    IN_ROUND = "in a round", Blame.NEITHER, Next.ELSEWHERE, "The receiver has stopped counting for a round."
    OVERLAP = "overlap", Blame.NEITHER, Next.ELSEWHERE, "Both sums hold the same microbatch."
    # the sender is at fault
    STRANGER = "stranger", Blame.SENDER, Next.RETRY, "The directory does not list the sender in the required role."
    MALFORMED = "malformed", Blame.SENDER, Next.ELSEWHERE, "A field or an array is missing, or beyond its limits."
    OTHER_VERSION = "another version", Blame.SENDER, Next.STOP, "The two ends have different versions of this protocol."
    OTHER_MODEL = "another model", Blame.SENDER, Next.STOP, "The two ends have different models, code or tokenizers."
    UNEXPECTED_PART = "unexpected part", Blame.SENDER, Next.ROUND, "The part is not of the round, or a second one."
    TOO_LARGE = reasons.TOO_LARGE, Blame.SENDER, Next.ELSEWHERE, "The arrays are larger than the receiver accepts."
    UNKNOWN_TOPIC = reasons.UNKNOWN_TOPIC, Blame.SENDER, Next.ELSEWHERE, "The receiver serves no such request."
    # the member that rejects is at fault, or names the two that are
    BUSY = reasons.BUSY, Blame.RECEIVER, Next.OTHERS, "Too many requests of this sender wait there."
    DEVICE_LATE = "device late", Blame.RECEIVER, Next.ROUND, "The receiver's device makes no progress."
    NOT_PREPARED = "not prepared", Blame.RECEIVER, Next.ROUND, "The receiver did not stop counting for this round."
    ABORTED = "round aborted", Blame.RECEIVER, Next.ROUND, "The round ended before the total was complete."
    LOST = "lost", Blame.RECEIVER, Next.ROUND, "A member of the round failed; the facts name the two that failed."
    PART_NOT_FINITE = "part not finite", Blame.RECEIVER, Next.ROUND, "The receiver's own gradients are not finite."
    FAILED = reasons.FAILED, Blame.RECEIVER, Next.ELSEWHERE, "The receiver's handler failed, or was cancelled."
    # the numbers are at fault
    NOT_FINITE = "not finite", Blame.NEITHER, Next.DROP, "An input, a result or a total is infinite or not a number."
    BEYOND_CODEC = "beyond codec", Blame.NEITHER, Next.ROUND, "Sums are finite, but the codec cannot carry them."

    def __new__(cls, word: str, blame: Blame, next_action: Next, meaning: str) -> "Reason":
        """A reason: its word on the wire, and its columns in the table above."""
        reason = str.__new__(cls, word)
        reason._value_ = word
        reason.blame, reason.next, reason.meaning = blame, next_action, meaning
        return reason

    @classmethod
    def of(cls, error: BaseException | None) -> "Reason | None":
        """The reason of a rejection; None: not a rejection, or with a word that this version does not know."""
        return _KNOWN.get(error.reason) if isinstance(error, Rejected) else None


_KNOWN: dict[str, Reason] = {reason.value: reason for reason in Reason}
