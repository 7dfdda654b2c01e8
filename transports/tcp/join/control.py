"""Control messages: the small msgpack values that ranks exchange while they join, each preceded by its length.

Each is a word and its content. The receiver checks the length and the content before it uses them.
"""

import asyncio
import socket
from struct import Struct
from typing import Any

import msgpack

from transports.errors import SAME_RELEASE, AuthenticationError, RendezvousError, TransportError, WireError
from transports.stream.sockets import read_exactly

LENGTH = Struct("!I")
CONTROL_BYTES = 1 << 12  # bytes of a control message, unless its reader allows more
REFUSAL_CHARACTERS = 900  # of the reason in a refusal, which must fit into `CONTROL_BYTES`
REFUSED = "refused"
ERRORS: dict[str, type[TransportError]] = {kind.__name__: kind for kind in (AuthenticationError, RendezvousError)}


async def send_control(sock: socket.socket, word: str, content: Any = None) -> None:
    body = msgpack.packb([word, content])
    await asyncio.get_running_loop().sock_sendall(sock, LENGTH.pack(len(body)) + body)


async def read_control(sock: socket.socket, word: str, max_bytes: int = CONTROL_BYTES) -> Any:
    """The content of the next control message, which must begin with `word` and have at most `limit` bytes.

    Raises:
        AuthenticationError, RendezvousError: it was a refusal, with the other side's reason.
        WireError: it was another message, or malformed. ConnectionError: the other side closed the connection.
    """
    (length,) = LENGTH.unpack(await read_exactly(sock, LENGTH.size))
    if length > max_bytes:
        raise WireError(f"a control message beyond the limit (bytes: {length}, limit: {max_bytes}); {SAME_RELEASE}")
    received_word, content = parse_control(await read_exactly(sock, length))
    if received_word == REFUSED:
        raise refusal_error(content)
    if received_word != word:
        raise WireError(f"an unexpected control message (expected: {word!r}, got: {received_word!r}); {SAME_RELEASE}")
    return content


def parse_control(body: bytes) -> list[Any]:
    try:
        message = msgpack.unpackb(body)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise WireError(f"a control message that is no msgpack (bytes: {len(body)}); {SAME_RELEASE}") from error
    if not isinstance(message, list) or len(message) != 2:
        raise WireError(f"a control message of another form (bytes: {len(body)}); {SAME_RELEASE}")
    return message


async def refuse(sock: socket.socket, error: TransportError) -> None:
    """Send a peer the reason why the rendezvous failed; best effort."""
    kind = next((name for name, kind in ERRORS.items() if isinstance(error, kind)), "RendezvousError")
    try:
        await send_control(sock, REFUSED, [kind, str(error)[:REFUSAL_CHARACTERS]])
    except OSError:
        pass  # the peer is gone already


def refusal_error(content: Any) -> TransportError:
    """The error that a refusal carries."""
    match content:
        case [str(kind), str(text)]:
            return ERRORS.get(kind, RendezvousError)(text)
    return RendezvousError("rank 0 refused the rendezvous without a reason; see its own message")
