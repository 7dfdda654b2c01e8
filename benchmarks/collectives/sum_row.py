"""A row of the table of all-reduces, and what is promised of it. Nothing is measured here."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

KIB, MIB = 1 << 10, 1 << 20
SHORT, SHORT_MORE_S = 64 * KIB, {2: 15e-6, 4: 40e-6}
MPI_RATIO = {4 * MIB: {2: 1.0, 4: 0.85}, 16 * MIB: {2: 1.5, 4: 1.2}, 64 * MIB: {2: 3.0, 4: 2.2}}
GLOO_RATIO, LATE_S, HALF_PER_BYTE, EXTRA = {4 * MIB: 3.0}, 5e-3, 2.5, 8 * MIB
"""What is promised: seconds beyond MPI's up to 64 KiB and ratios to it, by ranks; ratios to gloo (4 where none is
named); how late the other task may run; how much longer a byte of a half may take than one of float32; and bytes of
memory beyond the array's and an n-th of it."""

Taken = Mapping[str, Sequence[float]]
"""Seconds of one sum by contender, round by round; of the slowest rank."""
Pairs = Mapping[str, Sequence[tuple[float, float]]]
"""Our seconds and a peer's in the same rounds, by peer."""


@dataclass(frozen=True)
class Row:
    """One dtype and size.

    Args:
        late_s: how late the other task was at the worst, in all rounds, on any rank.
        held_s: how much of it was the rank's own work at the worst.
        floor_s: how late it was while no rank summed, but each moved memory for as long by itself.
        extra: bytes by which a first sum made the process larger, with every window that it maps.
        per_byte: our seconds over those of as many bytes of float32; 1 for float32.
    """

    dtype: str
    nbytes: int
    ranks: int
    pairs: Pairs
    late_s: float
    held_s: float = 0.0
    floor_s: float = 0.0
    extra: int = 0
    per_byte: float = 1.0

    @property
    def seconds(self) -> float:
        """Our median, in the rounds with the first peer."""
        return statistics.median(ours for ours, _ in next(iter(self.pairs.values())))

    @property
    def algbw(self) -> float:
        """Bytes of the array a second."""
        return self.nbytes / self.seconds

    @property
    def busbw(self) -> float:
        """Bytes a second that each rank sends and receives in the best algorithm for a network: 2(n-1)/n algbw."""
        return 2 * (self.ranks - 1) / self.ranks * self.algbw

    def ratios(self, peer: str) -> list[float]:
        """The peer's time over ours in each round, the least first."""
        return sorted(theirs / ours for ours, theirs in self.pairs[peer])

    def ratio(self, peer: str) -> float:
        return statistics.median(self.ratios(peer))

    @property
    def more_s(self) -> float:
        """Median of the rounds' seconds beyond MPI's."""
        return statistics.median(ours - mpi for ours, mpi in self.pairs["mpi"])

    @property
    def short_of(self) -> list[str]:
        """What is promised and was not seen."""
        found = ["late"] if self.late_s > LATE_S else []
        if "mpi" in self.pairs and not self._beside_mpi():
            found.append("mpi")
        if self.ratio("gloo") < GLOO_RATIO.get(self.nbytes, 4.0) and self.dtype == "float32":
            found.append("gloo")
        if self.extra > self.nbytes // self.ranks + EXTRA:
            found.append("memory")
        return found + (["per byte"] if self.per_byte > HALF_PER_BYTE else [])

    def _beside_mpi(self) -> bool:
        if self.nbytes <= SHORT:
            return self.more_s <= SHORT_MORE_S.get(self.ranks, float("inf"))
        least = next((MPI_RATIO[size] for size in sorted(MPI_RATIO) if self.nbytes <= size), {})
        return self.ratio("mpi") >= least.get(self.ranks, 0.0)

    def to_dict(self) -> dict[str, object]:
        """As JSON can hold it."""
        derived = ("seconds", "algbw", "busbw", "short_of")
        ratios = {peer: self.ratio(peer) for peer in self.pairs}
        return {**asdict(self), **{name: getattr(self, name) for name in derived}, "ratios": ratios}

    def line(self) -> str:
        """As a row of the table."""
        mpi, limit = f"{'':28}", f"{'':5}"
        if "mpi" in self.pairs:
            mpi, limit = f"{self._spread('mpi')} {self.more_s * 1e6:+9.1f}", f"{self.ratio('pass'):5.2f}"
        verdict = f"  short: {', '.join(self.short_of)}" if self.short_of else ""
        return (
            f"{self.dtype:8} {self.nbytes:9} {self.seconds * 1e6:9.1f} {self.algbw / 1e9:6.2f} {self.busbw / 1e9:6.2f} "
            f"{mpi} {self._spread('gloo')} {limit} {self.late_s * 1e3:4.1f} "
            f"{self.held_s * 1e3:4.1f} {self.floor_s * 1e3:5.1f} {self.extra / MIB:5.1f} {self.per_byte:4.2f}{verdict}"
        )

    def _spread(self, peer: str) -> str:
        ratios = self.ratios(peer)
        return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})".ljust(18)


HEAD = (
    f"{'dtype':8} {'bytes':>9} {'us':>9} {'algbw':>6} {'busbw':>6} {'x MPI':18} {'more us':>9} {'x gloo':18} "
    f"{'limit':>5} {'late':>4} {'held':>4} {'alone':>5} {'extra':>5} {'byte':>4}"
)


def pairs(taken: Taken) -> Pairs:
    """Ours beside each other contender's; `alone` sums nothing."""
    peers = {name: theirs for name, theirs in taken.items() if name not in ("ours", "alone")}
    return {name: list(zip(taken["ours"], theirs, strict=True)) for name, theirs in peers.items()}
