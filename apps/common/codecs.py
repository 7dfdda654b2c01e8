"""The check of a flag that names a codec. No torch."""

from pipelined.errors import UsageError
from pipelined.training.compression import NONE
from transports import find_codec


def check_codec(name: str, flag: str = "--compress") -> None:
    """Refuse an unknown codec.

    Raises:
        UsageError: the message names the flag and lists the known codecs.
    """
    if name == NONE:
        return
    try:
        find_codec(name)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}; or none") from error
