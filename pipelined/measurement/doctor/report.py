"""An examination as text: machines and libraries, measured links, and advice."""

from collections.abc import Iterator, Sequence

from pipelined.measurement.doctor.advice import Advice
from pipelined.measurement.doctor.examination import Examination, ExaminedNode
from pipelined.measurement.doctor.speed import Hop, Speed
from pipelined.measurement.timed.collective_costs import CollectiveCosts


def as_text(examination: Examination, advice: Sequence[Advice]) -> str:
    """The whole report."""
    ranks = sum(len(node.ranks) for node in examination.nodes)
    launch = examination.launch
    lines = [f"launch: {launch.launcher}, {ranks} rank{'s' * (ranks > 1)}, transport {launch.url}"]
    for node in examination.nodes:
        lines += ["", *_node(node)]
    if examination.speed:
        lines += ["", *_speed(examination.speed, ranks)]
    for name, costs in examination.collectives.items():
        lines += ["", *_collectives(name, costs)]
    lines += ["", "to change:" if advice else "nothing to change"]
    lines += [f"  {'! ' if remark.blocks_training else '- '}{remark}" for remark in advice]
    return "\n".join(lines)


def _node(node: ExaminedNode) -> Iterator[str]:
    machine = node.machine
    libraries = node.libraries
    yield f"node {machine.host} (ranks {', '.join(map(str, node.ranks))})"
    yield f"  system   {machine.system}, Python {machine.python}"
    quota = "" if machine.quota is None else f", {machine.quota:g} cores' worth of time"
    threads = f"OMP_NUM_THREADS={machine.threads}" if machine.threads else "OMP_NUM_THREADS is not set"
    yield f"  cores    {machine.cores}{quota}; {threads}"
    yield f"  memory   {_gib(machine.memory)}, {_gib(machine.available)} available; shared {_gib(machine.shared)}"
    packages = ", ".join(f"{name} {version}" for name, version in libraries.packages.items()) or "no package"
    thread_level = f", thread level {libraries.mpi_threads}" if libraries.mpi_threads else ""
    yield f"  MPI      {libraries.mpi or f'none: {libraries.mpi_error}'}{thread_level} ({packages})"
    yield f"  mpirun   {libraries.mpirun or 'none'}"
    torch_threads = f", {libraries.torch_threads} threads" if libraries.torch else ""
    yield f"  torch    {libraries.torch or f'none: {libraries.torch_error}'}{torch_threads}"
    devices = ", ".join(f"{name} ({_gib(size)})" for name, size in libraries.devices)
    yield f"  devices  {devices or 'CPU'}"


def _speed(speed: Speed, ranks: int) -> Iterator[str]:
    yield "links"
    for name, hop in (("on a node", speed.near), ("between nodes", speed.far)):
        if hop:
            yield f"  {name:<14}{_hop(hop)}"
    yield f"all-reduce over {ranks} ranks"
    yield f"  {'bytes':>10}{'time (ms)':>12}{'algbw GB/s':>12}{'busbw GB/s':>12}  auto takes"
    for sum_speed in speed.sums:
        bandwidths = f"{sum_speed.algbw / 1e9:>12.3f}{sum_speed.busbw / 1e9:>12.3f}"
        yield f"  {sum_speed.nbytes:>10}{sum_speed.seconds * 1e3:>12.3f}{bandwidths}  {sum_speed.algorithm}"


def _collectives(name: str, costs: CollectiveCosts) -> Iterator[str]:
    ranks = ", ".join(map(str, costs.ranks))
    adding = f"{costs.adding_s * 1e9:.3f} ns/byte"
    yield f"collectives by messages {name}, ranks {ranks} (adding: {adding})"
    yield f"  {'':<16}{'alpha (µs)':>18}{'beta (ns/byte)':>18}{'gamma (ns/byte)':>18}"
    fits = [*costs.fits.items(), ("together", costs.joint_fit), ("as AutoDDL", costs.pooled_fit)]
    for label, fit in fits:
        numbers = zip((1e6, 1e9, 1e9), (1, 3, 3), fit.values, fit.margins, strict=False)
        cells = [f"{value * unit:.{digits}f} ± {margin * unit:.{digits}f}" for unit, digits, value, margin in numbers]
        yield f"  {label:<16}" + "".join(f"{cell:>18}" for cell in cells)


def _hop(hop: Hop) -> str:
    rate = "unmeasurably fast" if hop.beta == 0 else f"{1e-9 / hop.beta:.2f} GB/s"
    alpha = f"alpha {hop.alpha * 1e6:.0f} ± {hop.margin_alpha * 1e6:.0f} µs"
    beta = f"beta {hop.beta * 1e9:.3f} ± {hop.margin_beta * 1e9:.3f} ns/byte ({rate})"
    return f"ranks {hop.ranks[0]} and {hop.ranks[1]}: {alpha}, {beta}"


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**30:.1f} GiB"
