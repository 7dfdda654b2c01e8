"""A node that may be struck: `python -m tests.ravnest.struck_node FILE FAULT serve ...`, and the flags of `serve`.

FAULT names a phase, the number of times that it begins first, and a signal that the process then sends itself, or a cut
of its links: `chunk sent:2:SIGKILL`, `ring:5:SIGSTOP`, `commit:3:CUT`. SIGCONT ends it. All nodes may have the same
fault: the first one that it befalls writes FILE, and no other is struck. "": none is.

Two faults joined by "+" each befall another node; the second one writes FILE with "-second".

With "late" before `serve` the node joins when a step is done, with all modules loaded: a process takes longer to start
than a short training.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module

from apps.common.commands import program as command_program
from apps.ravnest import __main__ as command
from pipelined.aio.clock import RealClock
from pipelined.membership.directory import open_directory
from pipelined.membership.registration import Registration
from pipelined.ravnest.averaging import state_transfer
from pipelined.ravnest.averaging.rounds import Rounds
from pipelined.ravnest.node.cluster_records import ClusterRecords
from pipelined.ravnest.records.progress import PROGRESS
from pipelined.training.segments.worker import TrainWorker
from tests.swarm.cut import cuttable_loop
from transports.rpc import open_endpoint
from transports.rpc.world import RankHolder, RpcTransport, Worlds
from transports.rpc.world.requests import WorldRequests


def always(*args):
    return True


def does(op, worker, at, *args):
    return at.op == op


def is_neighbour(worlds, addresses):
    """Whether holders of other places than this node's are lost, and this one's has two."""
    gone = {*addresses}
    both = [world for world in worlds._worlds.values() if world.holders.have_backups]
    twins = [world.holders.addresses[twin] for world in both if (twin := world.holders.twin) is not None]
    return bool(gone) and len(twins) == len(both) > 0 and not gone & {*twins}


def is_state(key):
    return key[0] == "state" and key[1] != "held"


PHASES = {
    "joining": (Registration, "put", always),
    "opening": (Worlds, "open", always),
    "forward": (TrainWorker, "_send_result", partial(does, "F")),
    "backward": (TrainWorker, "_send_result", partial(does, "B")),
    "one copy": (WorldRequests, "_send_copy", always),
    "snapshot": (Rounds, "snapshot", always),
    "ring": (RpcTransport, "send_buffer", always),
    "commit": (ClusterRecords, "commit", always),
    "difference": (Rounds, "add", always),
    "take-over": (Worlds, "lose", is_neighbour),
    "moments sent": (RpcTransport, "send", lambda end, peer, key, *args: is_state(key)),
    "moments received": (
        RpcTransport,
        "receive",
        lambda end, peer, key, *args: is_state(key) and peer != end.world_size,
    ),
    "chunk sent": (RankHolder, "send", lambda holder, key, *args: is_state(key)),
    "chunk received": (RankHolder, "receive", lambda holder, key, *args: is_state(key)),
}
CUT = "CUT"
CHUNK = 1 << 12
"""Bytes: the state of a small stage has several chunks."""


def strike_at(phase, times, claim, act):
    """Strike the process when a phase begins for the n-th time.

    Args:
        claim: whether this process is the one to be struck.
    """
    owner, method, is_it = PHASES[phase]
    original, left = getattr(owner, method), [times]

    def struck(*args, **kwargs):
        args = [[*each] if isinstance(each, Iterator) else each for each in args]
        left[0] -= is_it(*args)
        if left[0] == 0:
            left[0] = -1
            if claim():
                act()
        return original(*args, **kwargs)

    setattr(owner, method, struck if phase != "one copy" else one_copy(original, left, claim, act))


def one_copy(original, left, claim, act):
    """As `struck`, when the first holder of a rank has a message, and the backup has not."""
    over = asyncio.Event()
    over.set()

    async def send_copy(requests, seat, *args):
        is_second = seat >= requests.holders.world_size
        strikes = False
        if not is_second and len(requests.holders.remaining(requests.holders.ranks[seat])) > 1:
            left[0] -= 1
            if strikes := left[0] == 0 and claim():
                over.clear()
        if is_second:
            await over.wait()
        try:
            await original(requests, seat, *args)
        finally:
            if strikes:
                act()
                over.set()

    return send_copy


def claimed(path, name):
    """Whether this process, the node of this name, is the first one that asks."""
    try:
        with open(path, "x") as file:
            file.write(name)
    except FileExistsError:
        return False
    return True


async def first_step(url):
    """Wait until the directory has a step."""
    async with await open_endpoint("tcp://127.0.0.1:0") as endpoint:
        async with open_directory(url, endpoint, RealClock()) as directory:
            view = await directory.read(PROGRESS)
            async for changes in directory.watch(PROGRESS, view.revision):
                if changes:
                    return


def main(path, fault, *words):
    state_transfer.CHUNK = CHUNK
    if words[0] == "late":
        words = words[1:]
        import_module("pipelined.ravnest.node.node")
        import_module("apps.ravnest.task_training")
        asyncio.run(first_step(words[words.index("--coordinator") + 1]))
    for each, file in zip(fault.split("+") if fault else (), (path, f"{path}-second"), strict=False):
        phase, times, how = each.split(":")
        if how == CUT:
            loop, links = cuttable_loop()
            command_program.new_event_loop, act = (lambda loop=loop: loop), links.cut
        else:
            act = partial(os.kill, os.getpid(), getattr(signal, how))
        strike_at(phase, int(times), partial(claimed, file, words[words.index("--name") + 1]), act)
    return command.main([*words])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
