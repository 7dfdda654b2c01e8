"""What a swarm looks like from outside: the directory's records, and what each process says of itself.

The one rule: looking on changes nothing, and whoever does not answer is shown as silent.
"""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from apps._swarm_config import SUBJECT, Told
from apps._swarm_waiting import MOMENT_S, waits_for
from pipelined.swarm.directory import CutOff, Directory
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


async def looks(endpoint: Endpoint, directory: Directory, every_s: float) -> AsyncIterator[Look]:
    """Look, again and again; while the directory gives no answer, the last look, with the seconds since as `past_s`.

    Args:
        every_s: from the end of one look to the next.
    Raises:
        CutOff: the directory gave no answer from the beginning.
    """
    last, now = await look(endpoint, directory), asyncio.get_running_loop().time
    at = now()
    while True:
        yield last | {"past_s": now() - at}
        await asyncio.sleep(every_s)
        with suppress(CutOff, TimeoutError):
            async with asyncio.timeout(MOMENT_S):
                last, at = await look(endpoint, directory), now()


async def look(endpoint: Endpoint, directory: Directory) -> Look:
    """One look: `step`, `loss`, `norm`, `conductor`, `stages`, `peers`, `trainers`, `steps`, `tokens_per_s`,
    `waits_for`; `eval_loss` of validation data, as it was last, after `eval_step` steps.

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
    told = Told.unpack(entries[SUBJECT].value) if SUBJECT in entries else None
    scored = {"eval_loss": evaluated and evaluated.loss, "eval_step": evaluated and evaluated.step}
    left = told.held_out if told and head and not (evaluated and evaluated.point == head.point) else 0
    return {**_told(head, leader, seen[: len(peers)], seen[len(peers) :], told, left), **scored}


def _told(
    head: Head | None, leader: str | None, peers: list[Look], trainers: list[Look], told: Told | None, left: int
) -> Look:
    """
    Args:
        left: microbatches of validation data, if the parameters where it stands were not measured on them.
    """
    answers = sum((Counter(trainer.get("answers", {})) for trainer in trainers), Counter())
    stages = head.stages if head else 0
    for peer in peers:
        mine = sum(answers[other["name"]] for other in peers if other["stage"] == peer["stage"])
        peer["share"] = answers[peer["name"]] / mine if mine else math.nan
    serving = Counter(peer["stage"] for peer in peers if peer["phase"] == "serving")
    empty = [stage for stage in range(stages) if not serving[stage]]
    last = head is not None and told is not None and head.step >= told.subject.steps
    rate = sum(trainer.get("rate", 0.0) for trainer in trainers)
    scored = [f"{left - trainer['unscored']} of " for trainer in trainers if trainer.get("unscored") is not None]
    evaluates = f"{''.join(scored[:1])}{left}" if last and left else ""
    return {
        "step": head.step if head else None,
        "loss": head.loss if head else None,
        "norm": head.norm if head else None,
        "conductor": leader,
        "stages": stages,
        "peers": peers,
        "trainers": trainers,
        "steps": told and told.subject.steps,
        "tokens_per_s": told and rate * told.subject.tokens,
        "waits_for": waits_for(head, leader, bool(trainers), empty, evaluates, last and not left),
    }


async def _ask(endpoint: Endpoint, address: str) -> Look:
    try:
        async with asyncio.timeout(SILENT_S):
            return {**(await endpoint.ask(address, "status")).note, "silent": False}
    except (TimeoutError, Unreachable, Refusal):
        return {"silent": True}
