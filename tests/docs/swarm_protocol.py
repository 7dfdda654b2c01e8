"""Write docs/swarm-protocol.md from the classes of the protocol: `python -m tests.docs.swarm_protocol`."""

import inspect
import re
from collections.abc import Iterator

from pipelined.membership.messaging.fields import MAX_ITEMS, MAX_NAME, schema_of
from pipelined.membership.messaging.messages import VERSION, MemberRequest
from pipelined.membership.messaging.reasons import Reason
from pipelined.swarm.peer.lifecycle import NEXT, PeerEvent, PeerState
from tests.docs.swarm_requests import REQUESTS
from tests.launching import ROOT

FILE = ROOT / "docs" / "swarm-protocol.md"
ALWAYS = (Reason.MALFORMED, Reason.OTHER_VERSION)
BY_PEERS = (Reason.STRANGER, Reason.WRONG_INCARNATION, Reason.NO_STAGE)
BY_ENDPOINTS = (Reason.UNKNOWN_TOPIC, Reason.TOO_LARGE, Reason.BUSY, Reason.FAILED)

HEAD = f"""# The protocol of a swarm

<!-- Written by `python -m tests.docs.swarm_protocol` from the classes that send and receive; a test compares. -->

Version {VERSION}. The requests between trainers, leader and peers are dataclasses in the folder
[`swarm/protocol`](../pipelined/swarm/protocol); their common part is
[`membership/messaging/messages.py`](../pipelined/membership/messaging/messages.py), those for the state of a stage in
[`state/stages/messages.py`](../pipelined/state/stages/messages.py). The leader is one of the trainers.
[How a swarm works](swarm-design.md) says what the requests are for; [the directory](directory.md) has its own.

A request is a frame REQUEST with a topic, a note and arrays. The note is the list [version, incarnation of the receiver
or 0, field, field, ...], in the order below; the note of a reply is the list of its fields. Arrays are beside the note;
the receiver checks their dtypes and shapes. Each field is checked when it is read, so no size off the network is used
before it is checked: a name or an address has at most {MAX_NAME} characters, a list at most {MAX_ITEMS:,} items, a note
at most 64 KiB, a message at most 64 arrays. The bytes of arrays are limited by what the receiver's stage can need,
before memory is allocated. A request that cannot be read is rejected as `malformed`, a reply that cannot be read counts
as such a rejection, and a request of another version is rejected with both numbers.

## One step

```text
trainer                 leader                  peers of a stage                        directory
   |----- work ------------>|                          |                                    |
   |<---- WorkItem ---------|                          |                                    |
   |----- forward, stage after stage ----------------->|                                    |
   |<---- Outputs -------------------------------------|                                    |
   |----- backward, from the last stage to the first ->|  counts its gradient               |
   |<---- Gradients -----------------------------------|                                    |
   |----- work, with the report ->|                    |                                    |
   :        until every stage has counted the batch    :                                    :
   |                        |----- prepare ----------->|  stops counting                    |
   |                        |<---- Counts -------------|                                    |
   |                        |----- reduce ------------>|                                    |
   |                        |                          |<== part ===> every other member    |
   |                        |<---- Summed -------------|  holds the total                   |
   |                        |----- transaction: the head moves to the next step ----------->|
   |<--------------------------- the head changed ------------------------------------------|
   |                        |                          |  applies the total                 |
```

If a count is missing or a sum fails, the leader sends `resume` to all, assigns the missing microbatches again, and
makes another round under a greater name. While a round lasts it sends `reach`.

"""


def documented(cls: type) -> tuple[str, dict[str, str]]:
    """A class's docstring: what it says, and what it and its bases say of each field."""
    text, _, arguments = inspect.cleandoc(cls.__doc__ or "").partition("\nArgs:\n")
    meanings = documented(cls.__base__)[1] if cls.__base__ is not object else {}
    for names, meaning in re.findall(r"^    ([a-z, _]+): (.*(?:\n        .*)*)", arguments, re.MULTILINE):
        meanings |= dict.fromkeys(names.split(", "), " ".join(meaning.split()))
    return " ".join(text.split()), meanings


def fields_of(cls: type) -> Iterator[str]:
    """A line for each field of a message."""
    _, meanings = documented(cls)
    for name, schema in schema_of(cls).fields:
        limits = f"{schema}" if f"{schema}".startswith("(") else f"({schema})"
        yield f"- `{name}` {limits}" + (f": {meanings[name]}" if name in meanings else "")


def request_section(kind: type[MemberRequest]) -> Iterator[str]:
    """The section of one request."""
    reply = kind.reply()
    yield f"### {kind.topic}\n"
    yield f"`{kind.__name__}`, from {kind.sender.value} to {kind.receiver.value}. {documented(kind)[0]}\n"
    yield from fields_of(kind)
    yield f"\nReply `{reply.__name__}`: {documented(reply)[0]}\n"
    yield from fields_of(reply)
    rejections = ", ".join(f"`{reason}`" for reason in kind.rejections)
    yield f"\nRejections: {rejections}.\n" if rejections else ""


def overview() -> Iterator[str]:
    """The table of requests."""
    yield "| request | from | to | reply | what it does |\n|---|---|---|---|---|"
    for kind in REQUESTS:
        ends = f"{kind.sender.value} | {kind.receiver.value}"
        what = documented(kind)[0].split(". ")[0].rstrip(".")
        yield f"| [`{kind.topic}`](#{kind.topic}) | {ends} | `{kind.reply().__name__}` | {what} |"


def reasons() -> Iterator[str]:
    """The table of reasons."""
    yield "| reason | blame | what it means | the sender |\n|---|---|---|---|"
    for reason in Reason:
        yield f"| `{reason}` | {reason.blame.value} | {reason.meaning} | {reason.next.value} |"


def states() -> Iterator[str]:
    """The table of a peer's states: a row an event, a column a state."""
    columns = [state for state in PeerState if state is not PeerState.GONE]
    yield "| event | " + " | ".join(state.value for state in columns) + " |"
    yield "|---" * (1 + len(columns)) + "|"
    for event in PeerEvent:
        cells = [NEXT[state, event].value if (state, event) in NEXT else "" for state in columns]
        yield f"| {event.value} | " + " | ".join(cells) + " |"


def document() -> str:
    """The whole document."""
    groups = (ALWAYS, BY_ENDPOINTS, BY_PEERS)
    always, endpoints, peers = (", ".join(f"`{each}`" for each in group) for group in groups)
    lines = [
        HEAD,
        "## The requests\n",
        *overview(),
        f"\nEvery receiver may reject a request as {always}, and its endpoint as {endpoints}.",
        f"A peer may reject those for its stage also as {peers}.\n",
        *(line for kind in REQUESTS for line in request_section(kind)),
        "## The reasons\n",
        *reasons(),
        "\n## A peer's states\n",
        "A row is an event, a cell the state after it; an empty cell: it cannot happen.\n",
        *states(),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(document())
