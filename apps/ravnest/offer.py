"""The offer of a node to the clusters: the values of its flags, and measured ones where a flag is left out.

Imports torch.
"""

from contextlib import suppress
from dataclasses import replace

from apps.ravnest.flags.commands import Serve
from apps.ravnest.flags.config import RavnestTask
from apps.ravnest.plan import layer_sizes
from pipelined.actors.device.executor import Executor
from pipelined.actors.device.host_memory import free_memory
from pipelined.measurement.timed.layer_speed import SpeedProbe
from pipelined.measurement.timed.line import Line, measure_line
from pipelined.membership.connection import LocalMember
from pipelined.membership.directory.client.registry import ETCD
from pipelined.ravnest.node.node import Capacity
from pipelined.ravnest.node.ravnest_training import RavnestTraining
from pipelined.ravnest.planning.stage_sizes import StageRules, StageSizes
from pipelined.ravnest.records.nodes import MAX_DELAY_S, NODES, NodeRecord

NOT_MEASURED = Line(1e9 / 8, 0.0)
"""The line where neither a node nor a coordinator replies: 1 gbit."""
MAX_MEASURED = 2
"""Nodes to which a line is measured: the last ones to join."""


async def offer(
    flags: Serve, task: RavnestTask, training: RavnestTraining, local: LocalMember, executor: Executor
) -> tuple[Capacity, str]:
    """What a node offers, and the same in words."""
    ram = flags.ram_bytes or free_memory()
    flops = flags.find_speed()
    line, how = await _choose_line(flags, local)
    speed = "speed not known"
    if flops is None:
        flops = await measure_speed(task, training, ram, executor)
        speed = f"{flops * 1e-9:.3g} Gflops (measured)" if flops else "no layer fits, so its speed is not known"
    elif flops:
        speed = f"{flops * 1e-9:.3g} Gflops"
    mbit = float(f"{line.rate * 8e-6:.4g}")  # four digits, and no exponent
    words = f"{ram / 2**20:,.0f} MiB, {mbit:,g} mbit and {line.delay * 1e3:.3g} ms a way{how}, {speed}"
    return Capacity(ram, line.rate, flops, line.delay, flags.reliability), words


async def _choose_line(flags: Serve, local: LocalMember) -> tuple[Line, str]:
    """The line, and where it is from."""
    if flags.rate is not None:
        return Line(flags.rate, flags.delay_s or 0.0), ""
    line = await measure_own_line(local, flags.address.url)
    source = " (measured)"
    if line is None:
        line, source = NOT_MEASURED, " (assumed: no node replies)"
    return (line if flags.delay_s is None else replace(line, delay=flags.delay_s)), source


async def measure_speed(task: RavnestTask, training: RavnestTraining, ram: int, executor: Executor) -> float:
    """Operations a second on those of the model's layers that fit in this RAM; 0: none does."""
    settings = task.settings
    layers = tuple(layer_sizes(settings.model(task.vocabulary), settings.microbatch, settings.seq, settings.dtype))
    sizes = StageSizes(layers, StageRules(settings.weights))
    shape = settings.microbatch, settings.seq
    probe = SpeedProbe(training.model, training.feed, shape, training.numerics, executor)
    fitting = [sizes.of_layer(index) <= ram for index in range(len(layers))]
    return await probe.flops([layer.work for layer in layers], fitting)


async def measure_own_line(local: LocalMember, url: str) -> Line | None:
    """The line to the nodes that joined last, one after another, or else to the coordinator; None: no reply.

    Args:
        url: of the directory.
    """
    replies = [await _measure(local, address) for address in await _read_others(local)]
    if not any(replies) and url.partition("://")[0] != ETCD:
        replies = [await _measure(local, url)]
    lines = [line for line in replies if line]
    return Line.best_of(lines) if lines else None


async def _measure(local: LocalMember, address: str) -> Line | None:
    line = await measure_line(local.endpoint, address, local.clock)
    return line and replace(line, delay=min(line.delay, MAX_DELAY_S))


async def _read_others(local: LocalMember) -> list[str]:
    """The addresses of the nodes that joined last."""
    records = list[NodeRecord]()
    for entry in (await local.directory.read(NODES)).entries.values():
        with suppress(ValueError):
            records.append(NodeRecord.unpack(entry.value))
    records.sort(key=lambda record: record.incarnation)
    return [record.address for record in records if record.name != local.name][-MAX_MEASURED:]
