"""The options of slow links in a URL: `?delay=50ms&jitter=10ms&rate=500mbit&loss=0.01&seed=7`.

A wrong value is refused before a transport is opened; the error lists the allowed values. `transports.urls` finds the
options in a URL; `transports.emulation.link_timing` computes the effect on a message.
`node=4&far-delay=50ms&far-rate=100mbit` gives the links between nodes, here of four ranks each, a delay and a rate of
their own.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
BYTES_A_SECOND = {"kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8}
EXAMPLE = "write for example ?delay=50ms&jitter=10ms&rate=500mbit&loss=0.01&seed=7"
_NUMBER = re.compile(r"(\d+(?:\.\d+)?|\.\d+)([a-z]*)")
_FRACTION = re.compile(r"(?:\d+(?:\.\d+)?|\.\d+)(?:e[+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """The properties of a slow link; the defaults have no effect.

    Args:
        delay: seconds from when the last byte leaves to when it arrives.
        jitter: seconds; the delay of each message is uniform in delay ± jitter. At most the delay.
        rate: bytes a second; messages to one peer leave one after another.
        loss: the probability that a transmission is lost, 0 <= loss < 1; it is then sent again after a time-out.
        seed: seed of jitter and loss.
        ranks_per_node: 0: all ranks are on one node. Rank r is on node r // ranks_per_node.
        line: bytes a second that an endpoint sends to all others together, and as many that it receives.
        far_delay, far_rate: as `delay` and `rate`, of links between nodes; None: as inside a node.
    Raises:
        ValueError: the jitter exceeds a delay, or links between nodes are given without the ranks of a node.
    """

    delay: float = 0.0
    jitter: float = 0.0
    rate: float = math.inf
    loss: float = 0.0
    seed: int = 0
    ranks_per_node: int = 0
    far_delay: float | None = None
    far_rate: float | None = None
    line: float = math.inf

    def __post_init__(self) -> None:
        if not self.ranks_per_node and (self.far_delay, self.far_rate) != (None, None):
            raise ValueError("links between nodes without nodes (node: 0); give the ranks of a node, such as node=4")
        for name, delay in (("delay", self.delay), ("far-delay", self.far_delay)):
            if delay is not None and self.jitter > delay:
                fact = f"jitter beyond the delay (jitter: {self.jitter:g} s, {name}: {delay:g} s)"
                raise ValueError(f"{fact}; no message comes before it was sent: lower jitter= or raise {name}=")

    def between(self, source: int, target: int) -> "LinkProfile":
        """The profile of the link between two ranks, without nodes."""
        delay, rate = self.delay, self.rate
        if self.ranks_per_node and source // self.ranks_per_node != target // self.ranks_per_node:
            delay = delay if self.far_delay is None else self.far_delay
            rate = rate if self.far_rate is None else self.far_rate
        return replace(self, delay=delay, rate=rate, ranks_per_node=0, far_delay=None, far_rate=None)


def read_profile(options: Mapping[str, str]) -> LinkProfile:
    """The profile that these options give, by name.

    Raises:
        ValueError: a value is wrong; the error says what is allowed.
    """
    return LinkProfile(**{_field(name): _READERS[name](name, text) for name, text in options.items()})


def _field(option: str) -> str:
    return "ranks_per_node" if option == "node" else option.replace("-", "_")


def _with_unit(units: dict[str, float]) -> Callable[[str, str], float]:
    def read(name: str, text: str) -> float:
        match = _NUMBER.fullmatch(text)
        if not match or match[2] not in units:
            raise _refused(name, text, f"a number and one of the units {', '.join(units)}")
        return float(match[1]) * units[match[2]]

    return read


def _rate(name: str, text: str) -> float:
    rate = _with_unit(BYTES_A_SECOND)(name, text)
    if not rate:
        raise _refused(name, text, "more than 0")
    return rate


def _loss(name: str, text: str) -> float:
    if not _FRACTION.fullmatch(text) or not float(text) < 1:
        raise _refused(name, text, "a number from 0 to below 1")
    return float(text)


def _seed(name: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise _refused(name, text, "a whole number from 0 up")
    return int(text)


def _node(name: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise _refused(name, text, "a whole number from 1 up")
    return int(text)


def _refused(name: str, text: str, allowed: str) -> ValueError:
    return ValueError(f"?{name}= takes {allowed} (got: {text!r}); {EXAMPLE}")


_READERS: dict[str, Callable[[str, str], Any]] = {
    "delay": _with_unit(SECONDS),
    "jitter": _with_unit(SECONDS),
    "rate": _rate,
    "loss": _loss,
    "seed": _seed,
    "node": _node,
    "far-delay": _with_unit(SECONDS),
    "far-rate": _rate,
    "line": _rate,
}
OPTIONS = tuple(_READERS)
OPTIONS_OF = {"transport": OPTIONS[:-1], "endpoint": (*OPTIONS[:5], "line")}
"""The options by what a URL names: only ranks are on nodes, and only an endpoint has a line to all others."""
