"""An examination as text: machines and libraries, measured links, and advice."""

from collections.abc import Iterator, Sequence

from pipelined.measurement.doctor.advice import Advice
from pipelined.measurement.doctor.examination import Examination, ExaminedNode
from pipelined.measurement.doctor.speed import Hop, Speed
from pipelined.measurement.timed.collective_costs import CollectiveCosts


def as_text(found: Examination, advice: Sequence[Advice]) -> str:
    """The whole report."""
    ranks = sum(len(node.ranks) for node in found.nodes)
    lines = [f"launch: {found.launch.launcher}, {ranks} rank{'s' * (ranks > 1)}, transport {found.launch.url}"]
    for node in found.nodes:
        lines += ["", *_node(node)]
    if found.speed:
        lines += ["", *_speed(found.speed, ranks)]
    for name, costs in found.collectives.items():
        lines += ["", *_collectives(name, costs)]
    lines += ["", "to change:" if advice else "nothing to change"]
    lines += [f"  {'! ' if remark.blocks_training else '- '}{remark}" for remark in advice]
    return "\n".join(lines)


def _node(node: ExaminedNode) -> Iterator[str]:
    machine, own = node.machine, node.libraries
    yield f"node {machine.host} (ranks {', '.join(map(str, node.ranks))})"
    yield f"  system   {machine.system}, Python {machine.python}"
    quota = "" if machine.quota is None else f", {machine.quota:g} cores' worth of time"
    threads = f"OMP_NUM_THREADS={machine.threads}" if machine.threads else "OMP_NUM_THREADS is not set"
    yield f"  cores    {machine.cores}{quota}; {threads}"
    yield f"  memory   {_gib(machine.memory)}, {_gib(machine.available)} available; shared {_gib(machine.shared)}"
    packages = ", ".join(f"{name} {found}" for name, found in own.packages.items()) or "no package"
    threads = f", thread level {own.mpi_threads}" if own.mpi_threads else ""
    yield f"  MPI      {own.mpi or f'none: {own.mpi_error}'}{threads} ({packages})"
    yield f"  mpirun   {own.mpirun or 'none'}"
    yield f"  torch    {own.torch or f'none: {own.torch_error}'}{f', {own.torch_threads} threads' if own.torch else ''}"
    devices = ", ".join(f"{name} ({_gib(size)})" for name, size in own.devices)
    yield f"  devices  {devices or 'CPU'}"


def _speed(speed: Speed, ranks: int) -> Iterator[str]:
    yield "links"
    for name, hop in (("on a node", speed.near), ("between nodes", speed.far)):
        if hop:
            yield f"  {name:<14}{_hop(hop)}"
    yield f"all-reduce over {ranks} ranks"
    yield f"  {'bytes':>10}{'time (ms)':>12}{'algbw GB/s':>12}{'busbw GB/s':>12}  auto takes"
    for timed in speed.sums:
        speeds = f"{timed.algbw / 1e9:>12.3f}{timed.busbw / 1e9:>12.3f}"
        yield f"  {timed.nbytes:>10}{timed.seconds * 1e3:>12.3f}{speeds}  {timed.algorithm}"


def _collectives(name: str, costs: CollectiveCosts) -> Iterator[str]:
    ranks = ", ".join(map(str, costs.ranks))
    adding = f"{costs.adding * 1e9:.3f} ns/byte"
    yield f"collectives by messages {name}, ranks {ranks} (adding: {adding})"
    yield f"  {'':<16}{'alpha (µs)':>18}{'beta (ns/byte)':>18}{'gamma (ns/byte)':>18}"
    named = [*costs.each.items(), ("together", costs.joint), ("as AutoDDL", costs.pooled)]
    for label, found in named:
        cells = zip((1e6, 1e9, 1e9), (1, 3, 3), found.values, found.margins, strict=False)
        shown = [f"{value * unit:.{digits}f} ± {margin * unit:.{digits}f}" for unit, digits, value, margin in cells]
        yield f"  {label:<16}" + "".join(f"{cell:>18}" for cell in shown)


def _hop(hop: Hop) -> str:
    rate = "unmeasurably fast" if hop.beta == 0 else f"{1e-9 / hop.beta:.2f} GB/s"
    alpha = f"alpha {hop.alpha * 1e6:.0f} ± {hop.margin_alpha * 1e6:.0f} µs"
    beta = f"beta {hop.beta * 1e9:.3f} ± {hop.margin_beta * 1e9:.3f} ns/byte ({rate})"
    return f"ranks {hop.ranks[0]} and {hop.ranks[1]}: {alpha}, {beta}"


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**30:.1f} GiB"
