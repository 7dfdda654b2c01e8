"""The options of slow links in a URL: `?delay=50ms&jitter=10ms&rate=500mbit&loss=0.01&seed=7`.

A wrong value is refused before a transport is opened; the error lists the allowed values. `transports.urls` finds the
options in a URL; `transports.emulation.link` computes the effect on a message.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
BYTES_A_SECOND = {"kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8}
EXAMPLE = "write for example ?delay=50ms&jitter=10ms&rate=500mbit&loss=0.01&seed=7"
_NUMBER = re.compile(r"(\d+(?:\.\d+)?|\.\d+)([a-z]*)")
_FRACTION = re.compile(r"(?:\d+(?:\.\d+)?|\.\d+)(?:e[+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class LinkShape:
    """The properties of a slow link; the defaults have no effect.

    Args:
        delay: seconds from the leaving of the last byte to its arrival.
        jitter: seconds; the delay of each message is uniform in delay ± jitter. At most the delay.
        rate: bytes a second; messages to one peer leave one after another.
        loss: the probability that a transmission is lost, 0 <= loss < 1; it is then sent again after a time-out.
        seed: seed of jitter and loss.
    Raises:
        ValueError: the jitter exceeds the delay.
    """

    delay: float = 0.0
    jitter: float = 0.0
    rate: float = math.inf
    loss: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.jitter > self.delay:
            raise ValueError(
                f"jitter beyond the delay (jitter: {self.jitter:g} s, delay: {self.delay:g} s); no message comes "
                "before it was sent: lower jitter= or raise delay="
            )


OPTIONS = tuple(field.name for field in fields(LinkShape))


def read_shape(given: Mapping[str, str]) -> LinkShape:
    """The shape that these options give, by name.

    Raises:
        ValueError: a value is wrong; the error says what is allowed.
    """
    return LinkShape(**{name: _READERS[name](name, text) for name, text in given.items()})


def _with_unit(units: dict[str, float]) -> Callable[[str, str], float]:
    def read(name: str, text: str) -> float:
        found = _NUMBER.fullmatch(text)
        if not found or found[2] not in units:
            raise _refused(name, text, f"a number and one of the units {', '.join(units)}")
        return float(found[1]) * units[found[2]]

    return read


def _rate(name: str, text: str) -> float:
    rate = _with_unit(BYTES_A_SECOND)(name, text)
    if not rate:
        raise _refused(name, text, "more than 0")
    return rate


def _loss(name: str, text: str) -> float:
    if not _FRACTION.fullmatch(text) or not float(text) < 1:
        raise _refused(name, text, "a fraction from 0 up to, but not, 1")
    return float(text)


def _seed(name: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise _refused(name, text, "a whole number from 0 up")
    return int(text)


def _refused(name: str, text: str, allowed: str) -> ValueError:
    return ValueError(f"?{name}= takes {allowed} (got: {text!r}); {EXAMPLE}")


_READERS: dict[str, Callable[[str, str], Any]] = {
    "delay": _with_unit(SECONDS),
    "jitter": _with_unit(SECONDS),
    "rate": _rate,
    "loss": _loss,
    "seed": _seed,
}
