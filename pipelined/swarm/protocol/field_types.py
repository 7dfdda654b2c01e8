"""The types of fields that several messages have, with their limits; see `pipelined.membership.messaging.fields`."""

from collections.abc import Mapping
from typing import Annotated, Any

from pipelined.membership.messaging.fields import ANY, Arrays, ListOf, PlainValue, number, text, whole
from pipelined.state.stages.versions import MAX_STAGES

Name = Annotated[str, text()]
Index = Annotated[int, whole()]
Incarnation = Annotated[int, whole()]
Revision = Annotated[int, whole()]
StageNumber = Annotated[int, whole(MAX_STAGES - 1)]
Seconds = Annotated[float, number(0.0)]
Waits = Annotated[Mapping[Name, Seconds], ListOf()]
CODING = PlainValue("any note of their coding", ANY.accepts)
CodedArrays = tuple[Annotated[tuple[Any, ...], Arrays()], Annotated[Any, CODING]]
"""Arrays as they are sent, and the note of their coding; None: not coded. See `pipelined.swarm.stages.swarm_stage`."""
