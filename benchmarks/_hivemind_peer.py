"""One peer of hivemind's, run by a Python of its own: `HIVEMIND-PYTHON _hivemind_peer.py JSON [ADDRESS …]`.

It says `at ADDRESS`, then `took EPOCH SAMPLES DIGEST` for each of its optimizer's steps: the samples of its own that
were averaged, and a digest of its parameters. It imports nothing of this project. The peer that is to die kills its
whole session, its daemons too, so many seconds into an all-reduce. What hivemind logs goes to stderr.
"""

import asyncio
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from multiprocessing import Value
from typing import Any

import hivemind
import torch
from hivemind.averaging.allreduce import AllReduceRunner


def die_in_sum(delay_s: float) -> Any:
    """Let this process's session end inside its first all-reduce after the value that is returned was set to 1."""
    armed, original = Value("i", 0), AllReduceRunner.run  # the all-reduce runs in a fork of this process

    async def die() -> None:
        await asyncio.sleep(delay_s)
        print("struck", flush=True)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    async def run(self: AllReduceRunner) -> AsyncIterator[torch.Tensor]:
        dying = asyncio.ensure_future(die()) if armed.value else None
        async for tensor in original(self):
            yield tensor
        if dying is not None:
            await dying

    AllReduceRunner.run = run
    return armed


def main(task: dict, peers: list[str]) -> None:
    """Take part until killed, or until enough epochs were seen."""
    torch.set_num_threads(1)
    armed = None if task["dies"] is None else die_in_sum(task["dies"])
    dht = hivemind.DHT(initial_peers=peers, start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    print("at", dht.get_visible_maddrs()[0], flush=True)
    weights = torch.nn.Parameter(torch.zeros(task["nbytes"] // 4))
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="benchmark",
        target_batch_size=task["target"],
        batch_size_per_step=task["samples"],
        params=[weights],
        optimizer=lambda params: torch.optim.SGD(params, lr=1e-3),
        matchmaking_time=task["matchmaking_s"],
        averaging_timeout=task["averaging_s"],
        delay_state_averaging=False,
    )
    sys.stdin.readline()  # all are ready
    while optimizer.local_epoch < task["epochs"]:
        time.sleep(task["sample_s"])
        epoch = optimizer.local_epoch
        if armed is not None and epoch >= task["struck_after"]:
            armed.value = 1
        before = optimizer.tracker.local_progress.samples_accumulated
        weights.grad = torch.full_like(weights, 1.0 + task["rank"])
        optimizer.step()
        if optimizer.local_epoch != epoch:
            digest = hashlib.blake2b(weights.detach().numpy(), digest_size=8).hexdigest()
            print("took", optimizer.local_epoch, before + task["samples"], digest, flush=True)
    print("done", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
