"""The report of a process on itself: a peer or a trainer, with the last events of its process."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, islice
from operator import itemgetter
from reprlib import repr  # of limited depth and length: what is shown came off the network
from typing import Annotated, Any, TypeVar

from pipelined.membership.messaging.fields import ListOf, Malformed, number, text, whole
from pipelined.membership.messaging.messages import MemberReply, MemberRequest, MemberRole
from pipelined.process.reporting.events import MAX_TEXT, Event, parse_event, recent
from pipelined.swarm.protocol.field_types import Name, Seconds
from transports import Block
from transports.rpc import Endpoint

T = TypeVar("T", int, float)
MAX_EVENTS = 16
"""Number of the last events that a process reports."""
REPORT_BYTES = 16 << 10
ENTRY_BYTES = 16
"""The most bytes of a trainer's report on its peers, of which it has two, and those of an entry beside the peer's name.
A reply must fit the header of a frame, 64 KiB, in a swarm of any size."""


class EventSchema:
    """An event of `pipelined.process.reporting.events`; it is sanitised when it is read."""

    def write(self, value: Event, blocks: list[Any]) -> Any:
        return value.to_dict()

    def read(self, value: Any, blocks: deque[Block]) -> Event:
        event = parse_event(value)
        if event is None:
            raise Malformed(f"no event (got: {repr(value)})")
        return event

    def __str__(self) -> str:
        return "event: at, level, kind, facts"


Count = Annotated[int, whole()]
Why = Annotated[str, text(MAX_TEXT)]
NamedCounts = Annotated[Mapping[Name, Count], ListOf()]


@dataclass(frozen=True, slots=True)
class EndpointTraffic:
    """The bytes of an endpoint, and what it rejected.

    Args:
        sent, received: bytes.
        invalid_input: by reason, connections and frames.
        rejected_requests: by reason.
    """

    sent: Count
    received: Count
    invalid_input: NamedCounts
    rejected_requests: NamedCounts


def traffic_of(end: Endpoint) -> EndpointTraffic:
    """What an endpoint has counted."""
    return EndpointTraffic(end.bytes_sent, end.bytes_received, dict(end.invalid_input), dict(end.rejected_requests))


@dataclass(frozen=True, slots=True)
class StageReport:
    """The stage that a peer holds.

    Args:
        step: the next step to apply.
        counted: microbatches of it in the peer's sum.
        waiting: pieces of work that wait for its device.
        forwards, backwards: passes done.
    """

    step: Count
    counted: Count
    waiting: Count
    forwards: Count
    backwards: Count


@dataclass(frozen=True, slots=True)
class PeerReport:
    """What a peer does.

    Args:
        stage: None: it holds none.
        unsaved: why its last save failed; "": it did not.
        donor: the peer that sends it the state of its stage now; "": no peer does.
    """

    stage: StageReport | None
    unsaved: Why
    donor: Name


@dataclass(frozen=True, slots=True)
class LeaderReport:
    """What the leader does.

    Args:
        left: microbatches that the current step still lacks.
        unscored: microbatches of validation data without a score.
        phase: of the current step: "counting", "preparing" or "summing".
        attempt: the number of rounds at the current step.
        last_failure: step, round and reason of the last round in which a member failed; "": none failed.
    """

    left: Count
    unscored: Count
    phase: Why
    attempt: Count
    last_failure: Why


@dataclass(frozen=True, slots=True)
class TrainerReport:
    """What a trainer does.

    Args:
        done: microbatches.
        rate: microbatches per second now.
        replies: by peer, how many came; of many peers those with the most.
        banned: by address of a peer, seconds left of its ban, 0 until it announces itself; of many the longest.
        leads: None: it does not lead.
    """

    done: Count
    rate: Annotated[float, number(0.0)]
    replies: Annotated[Mapping[Name, Count], ListOf(REPORT_BYTES // ENTRY_BYTES)]
    banned: Annotated[Mapping[Name, Seconds], ListOf(REPORT_BYTES // ENTRY_BYTES)]
    leads: LeaderReport | None


@dataclass(frozen=True, slots=True)
class StatusReply(MemberReply):
    """The state of a process.

    Args:
        cut_off: whether the directory does not reply to it.
        traffic: of its endpoint.
        peer, trainer: what it does; one of the two is None.
        events: its last events, if they were requested.
    """

    cut_off: bool
    traffic: EndpointTraffic
    peer: PeerReport | None = None
    trainer: TrainerReport | None = None
    events: Annotated[tuple[Annotated[Event, EventSchema()], ...], ListOf(MAX_EVENTS)] = ()


@dataclass(frozen=True, slots=True)
class Status(MemberRequest[StatusReply]):
    """Report the state of this process.

    Args:
        events: whether the reply includes the last events.
    """

    topic = "status"
    sender = MemberRole.ANY
    receiver = MemberRole.ANY

    events: bool = False

    @property
    def recent_events(self) -> tuple[Event, ...]:
        return tuple(recent(MAX_EVENTS)) if self.events else ()


def largest(numbers: Mapping[str, T]) -> dict[str, T]:
    """The entries with the largest numbers, as many as fit into a report on peers."""
    entries = sorted(numbers.items(), key=itemgetter(1), reverse=True)
    ends = accumulate(ENTRY_BYTES + len(name.encode()) for name, _ in entries)
    return dict(islice(entries, sum(end <= REPORT_BYTES for end in ends)))
