"""One peer of hivemind's, run by a Python of its own: `HIVEMIND-PYTHON hivemind_peer.py JSON [ADDRESS …]`.

It says `at ADDRESS`, then `took EPOCH SAMPLES DIGEST` for each of its optimizer's steps: the samples of its own that
went into the sum, and a digest of its parameters. It imports nothing of this project. The peer that is to die kills its
whole session, its daemons too, as soon as it was brought so large a share of what it is to sum. What hivemind logs goes
to stderr. Configured as the guide in `hivemind.Optimizer` says for a small local run.
"""

import hashlib
import json
import os
import signal
import sys
import time
from multiprocessing import Value
from typing import Any

import hivemind
import torch
from hivemind.averaging.partition import TensorPartReducer


def die_in_sum(share: float) -> Any:
    """Let this session end inside its first sum after the value that is returned was set to 1.

    Args:
        share: in [0, 1), of the parts that members bring this one to sum; one more, and it is dead.
    """
    armed, original = Value("i", 0), TensorPartReducer.accumulate_part  # sums are made in a fork of this process

    async def accumulate_part(self: TensorPartReducer, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.brought = getattr(self, "brought", 0) + armed.value
        if self.brought > share * self.num_parts * self.num_senders:
            print("struck", flush=True)
            os.killpg(os.getpgrp(), signal.SIGKILL)
        return await original(self, *args, **kwargs)

    TensorPartReducer.accumulate_part = accumulate_part
    return armed


def note_summed(averager: Any) -> list[int]:
    """The samples of this peer that went into each sum of gradients, kept up to date."""
    summed, original = list[int](), averager.step

    def step(*args: Any, **kwargs: Any) -> Any:
        summed.append(averager.local_samples_accumulated)
        return original(*args, **kwargs)

    averager.step = step
    return summed


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
    summed = note_summed(optimizer.grad_averager)
    sys.stdin.readline()  # all are ready
    while optimizer.local_epoch < task["epochs"]:
        time.sleep(task["microbatch_s"])
        epoch = optimizer.local_epoch
        if armed is not None and epoch >= task["struck_after"]:
            armed.value = 1
        summed.clear()
        weights.grad = torch.full_like(weights, 1.0 + task["rank"])
        optimizer.step()
        if optimizer.local_epoch != epoch:
            digest = hashlib.blake2b(weights.detach().numpy(), digest_size=8).hexdigest()
            print("took", optimizer.local_epoch, sum(summed), digest, flush=True)
    print("done", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
