"""The shared key of all processes of a job or an open network: where it is read, and the error without it."""

import os
from collections.abc import Mapping
from pathlib import Path

from transports.errors import AuthenticationError

SAME_KEY = "give every process the same PIPELINED_KEY or PIPELINED_KEY_FILE"
"""The remedy if two ends hold different keys."""


class UnprovenKey(AuthenticationError):
    """A connector could not prove the key; `caller` is what it claims to be."""

    def __init__(self, caller: str):
        self.caller = caller
        super().__init__(f"{caller} holds another key or none; {SAME_KEY}")


def read_shared_key(environ: Mapping[str, str]) -> bytes:
    """The shared key: the text of PIPELINED_KEY, or the content of the file that PIPELINED_KEY_FILE names.

    Blanks around it do not count.

    Raises:
        AuthenticationError: both are set, the file cannot be read, or there are only blanks.
    """
    text, path = environ.get("PIPELINED_KEY", ""), environ.get("PIPELINED_KEY_FILE", "")
    if text and path:
        raise AuthenticationError("both PIPELINED_KEY and PIPELINED_KEY_FILE are set; keep one of them")
    if not path:
        if text and not text.strip():
            fact = f"PIPELINED_KEY has only blanks (characters: {len(text)})"
            raise AuthenticationError(f"{fact}; put the shared key into it, or unset it")
        return os.fsencode(text).strip()
    try:
        key = Path(path).read_bytes().strip()
    except OSError as error:
        raise AuthenticationError(f"cannot read the file in PIPELINED_KEY_FILE ({path}: {error.strerror})") from error
    if not key:
        raise AuthenticationError(f"the key file {path} is empty (bytes: 0); put the shared key into it")
    return key
