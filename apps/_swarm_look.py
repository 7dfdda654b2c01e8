"""What a swarm looks like from outside: the directory's records, and what each process says of itself.

The one rule: looking on changes nothing, and whoever does not answer is shown as silent.
"""

import asyncio
import math
from collections import Counter
from dataclasses import asdict
from typing import Any

from pipelined.swarm.directory import Directory
from pipelined.swarm.records import (
    CONDUCTOR,
    EVALUATED,
    HEAD,
    PEERS,
    TRAINERS,
    Conductor,
    Evaluated,
    Head,
    Peer,
    Trainer,
)
from transports.endpoints import Endpoint, Refusal, Unreachable

SILENT_S = 1.0
"""How long a process is given to say what it does."""

Look = dict[str, Any]


async def look(endpoint: Endpoint, directory: Directory) -> Look:
    """One look: `step`, `loss`, `norm`, `conductor`, `stages`, `peers`, `trainers`, `waits_for`; `eval_loss` of
    validation data, as it was last, after `eval_step` steps.

    Raises:
        CutOff: the directory gives no answer.
    """
    entries = (await directory.read()).entries
    head = Head.unpack(entries[HEAD].value) if HEAD in entries else None
    evaluated = Evaluated.unpack(entries[EVALUATED].value) if EVALUATED in entries else None
    leader = Conductor.unpack(entries[CONDUCTOR].value).name if CONDUCTOR in entries else None
    peers = [Peer.unpack(entry.value) for key, entry in sorted(entries.items()) if key.startswith(PEERS)]
    trainers = [Trainer.unpack(entry.value) for key, entry in sorted(entries.items()) if key.startswith(TRAINERS)]
    said = await asyncio.gather(*(_ask(endpoint, each.address) for each in [*peers, *trainers]))
    seen = [{**asdict(each), **told} for each, told in zip([*peers, *trainers], said, strict=True)]
    scored = {"eval_loss": evaluated and evaluated.loss, "eval_step": evaluated and evaluated.step}
    return {**_told(head, leader, seen[: len(peers)], seen[len(peers) :]), **scored}


def _told(head: Head | None, leader: str | None, peers: list[Look], trainers: list[Look]) -> Look:
    answers = sum((Counter(trainer.get("answers", {})) for trainer in trainers), Counter())
    stages = head.stages if head else 0
    for peer in peers:
        mine = sum(answers[other["name"]] for other in peers if other["stage"] == peer["stage"])
        peer["share"] = answers[peer["name"]] / mine if mine else math.nan
    serving = Counter(peer["stage"] for peer in peers if peer["phase"] == "serving")
    empty = [stage for stage in range(stages) if not serving[stage]]
    return {
        "step": head.step if head else None,
        "loss": head.loss if head else None,
        "norm": head.norm if head else None,
        "conductor": leader,
        "stages": stages,
        "peers": peers,
        "trainers": trainers,
        "waits_for": _waits_for(head, leader, trainers, empty),
    }


def _waits_for(head: Head | None, leader: str | None, trainers: list[Look], empty: list[int]) -> str:
    if not trainers:
        return "a trainer"
    if head is None or leader is None:
        return "a conductor" if leader is None else "peers that have saved all stages"
    return f"a peer of stage {', '.join(map(str, empty))}" if empty else ""


async def _ask(endpoint: Endpoint, address: str) -> Look:
    try:
        async with asyncio.timeout(SILENT_S):
            return {**(await endpoint.ask(address, "status")).note, "silent": False}
    except (TimeoutError, Unreachable, Refusal):
        return {"silent": True}
