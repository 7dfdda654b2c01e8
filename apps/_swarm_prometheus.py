"""A look at a swarm as numbers that Prometheus reads; docs/command-line.md lists them.

The one rule: a number that only grows is a counter, and a name that somebody else chose stands in a label, escaped.
"""

import math
from collections.abc import Iterator

from apps._swarm_look import Look
from pipelined.swarm.membership import WORKING

OF_SWARM = ("step", "loss", "norm", "tokens_per_s", "eval_loss", "eval_step", "past_s")
OF_PEER = {
    "silent": "gauge",
    "waiting": "gauge",
    "counted": "gauge",
    "share": "gauge",
    "forwards": "counter",
    "backwards": "counter",
    "sent": "counter",
    "received": "counter",
}
OF_TRAINER = {"silent": "gauge", "rate": "gauge", "done": "counter", "banned": "gauge"}
"""What Prometheus is given, and of which type."""


def metrics(look: Look) -> str:
    """The look as Prometheus reads it."""
    return "".join(f"{line}\n" for line in _metrics(look))


def _metrics(look: Look) -> Iterator[str]:
    for name in OF_SWARM:
        if look.get(name) is not None:
            yield f"# TYPE swarm_{name} gauge"
            yield f"swarm_{name} {look[name]}"
    yield "# TYPE swarm_stage_peers gauge"
    for stage in range(look["stages"]):
        serving = sum(peer["stage"] == stage and peer["phase"] in WORKING for peer in look["peers"])
        yield f'swarm_stage_peers{{stage="{stage}"}} {serving}'
    for name, kind in OF_PEER.items():
        yield f"# TYPE swarm_peer_{name} {kind}"
        for peer in look["peers"]:
            if name in peer:
                which = f'peer="{_label(peer["name"])}",stage="{peer["stage"]}"'
                yield f"swarm_peer_{name}{{{which}}} {_number(peer[name])}"
    yield from _of_trainers(look["trainers"])
    for name in ("rejected", "refused"):
        yield f"# TYPE swarm_peer_{name} counter"
        for peer in look["peers"]:
            for reason, count in peer.get(name, {}).items():
                yield f'swarm_peer_{name}{{peer="{_label(peer["name"])}",reason="{_label(reason)}"}} {count}'
    yield "# TYPE swarm_web_rejected counter"
    for reason, count in look.get("web_rejected", {}).items():
        yield f'swarm_web_rejected{{reason="{_label(reason)}"}} {count}'


def _of_trainers(trainers: list[Look]) -> Iterator[str]:
    for name, kind in OF_TRAINER.items():
        yield f"# TYPE swarm_trainer_{name} {kind}"
        for trainer in trainers:
            if name in trainer:
                value = len(trainer[name]) if name == "banned" else trainer[name]
                yield f'swarm_trainer_{name}{{trainer="{_label(trainer["name"])}"}} {_number(value)}'


def _number(value: float) -> str:
    """As Prometheus writes it: of a bool 0 or 1."""
    return "NaN" if math.isnan(value) else str(value + 0)


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
