"""Every request of a swarm, in the order of docs/swarm-protocol.md; see `tests.docs.swarm_protocol`."""

from typing import Any

from pipelined.membership.messaging.messages import MemberRequest, Ping
from pipelined.state.stages.messages import FetchChunk, FetchManifest, FetchTotals
from pipelined.swarm.protocol.rounds import Inherit, Prepare, Reduce, ReportRound, Resume, SendPart
from pipelined.swarm.protocol.status import Status
from pipelined.swarm.protocol.work import Announce, Backward, Evaluate, Forward, GetStage, GetWork

REQUESTS: tuple[type[MemberRequest[Any]], ...] = (
    GetWork,
    Forward,
    Backward,
    Evaluate,
    Announce,
    Prepare,
    Resume,
    Reduce,
    ReportRound,
    SendPart,
    Inherit,
    FetchManifest,
    FetchChunk,
    FetchTotals,
    GetStage,
    Ping,
    Status,
)
