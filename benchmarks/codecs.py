"""What codecs take, out and back, and what they do to numbers: `python -m benchmarks.codecs`.

One core, one thread; this process and bitsandbytes' (`--peer`) are pinned to it and take turns within every round, so
what else the machine does meets both alike. Normal values, as activations are; for zstd also token ids.
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import tyro

from benchmarks.harness.ranks import check, program
from benchmarks.harness.results import Reported, tell
from benchmarks.links.codec_overlap import Overlap, measure_overlap
from pipelined.errors import UsageError
from pipelined.process.memory import KEPT, MAX_THRESHOLD, keep_freed
from transports import codec_names, pack, unpack

PEER = Path(__file__).parent / "links" / "codec_peer.py"
BLOCK = 4096
SAME_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(MAX_THRESHOLD), "MALLOC_TRIM_THRESHOLD_": str(KEPT)}
"""What lets the peer's C library keep freed memory, as `keep_freed` does here: else only the peer pays page faults."""


@dataclass(frozen=True)
class Options(Reported):
    """Time codecs out and back."""

    mib: tuple[int, ...] = (1, 16, 64)
    """Sizes of the arrays, MiB."""
    rounds: int = 7
    """Rounds timed, after one that is not."""
    peer: Path | None = None
    """A Python that has bitsandbytes. Open: this one, if it has."""
    torch: bool = True
    """Import torch, as training has it: casts then use it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(mib=self.mib, rounds=[self.rounds])


@dataclass(frozen=True)
class Timing:
    """One codec at one size.

    Args:
        data: what the array holds.
        out_s, back_s: seconds of each round.
        peer_out_s, peer_back_s: bitsandbytes' in the same rounds; empty where it has no such codec.
        share: bytes on the wire over bytes of the array.
        error: mean squared.
    """

    codec: str
    data: str
    nbytes: int
    out_s: tuple[float, ...]
    back_s: tuple[float, ...]
    share: float
    error: float
    peer_out_s: tuple[float, ...] = ()
    peer_back_s: tuple[float, ...] = ()
    peer_error: float | None = None

    @property
    def out_ratio(self) -> float | None:
        return _ratio(self.out_s, self.peer_out_s)

    @property
    def back_ratio(self) -> float | None:
        return _ratio(self.back_s, self.peer_back_s)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it, with what follows from it."""
        rates = {f"{way}_gb_s": self.nbytes / statistics.median(self._seconds(way)) / 1e9 for way in ("out", "back")}
        return {**asdict(self), **rates, "out_ratio": self.out_ratio, "back_ratio": self.back_ratio}

    def row(self) -> str:
        """One line of the table."""
        ways = "".join(f"{_rate(self.nbytes, self._seconds(way)):>21}" for way in ("out", "back"))
        ratios = "".join(f"{'' if r is None else f'{r:.2f}x':>8}" for r in (self.out_ratio, self.back_ratio))
        head = f"{self.nbytes / 2**20:>6.0f}  {self.codec:<12}{self.data:<8}"
        return f"{head}{ways}{ratios}{self.share:>8.3f}{self.error:>11.3g}"

    def _seconds(self, way: str) -> tuple[float, ...]:
        return self.out_s if way == "out" else self.back_s


def _ratio(ours: tuple[float, ...], theirs: tuple[float, ...]) -> float | None:
    """How many times as fast ours is: the median of the rounds' ratios."""
    return statistics.median(their / our for our, their in zip(ours, theirs, strict=True)) if theirs else None


def _rate(nbytes: int, seconds: tuple[float, ...]) -> str:
    rates = sorted(nbytes / second / 1e9 for second in seconds)
    return f"{statistics.median(rates):.2f} ({rates[0]:.2f}-{rates[-1]:.2f})"


class Peer:
    """bitsandbytes, one answer a question.

    Args:
        process: runs `links/codec_peer.py`.
    """

    def __init__(self, process: "subprocess.Popen[str]"):
        self._in, self._out = _stream(process.stdin), _stream(process.stdout)

    def timed(self, count: int) -> tuple[float, float, float]:
        """Seconds out and back of so many float32, and the mean squared error."""
        print(count, BLOCK, file=self._in, flush=True)
        out, back, error = json.loads(self._out.readline())
        return out, back, error


def _stream(stream: "IO[str] | None") -> "IO[str]":
    assert stream is not None
    return stream


def _has_bitsandbytes(python: Path) -> bool:
    probe = "from importlib.util import find_spec; raise SystemExit(find_spec('bitsandbytes') is None)"
    try:
        return subprocess.run([python, "-c", probe], check=False).returncode == 0
    except OSError:
        return False


@contextmanager
def peer(python: Path | None) -> Iterator[Peer | None]:
    """bitsandbytes in its own process, or None without it.

    Raises:
        UsageError: the given Python does not have it.
    """
    if python is None and importlib.util.find_spec("bitsandbytes") is None:
        yield None
        return
    if python is not None and not _has_bitsandbytes(python):
        raise UsageError(f"no Python with bitsandbytes (--peer {python}); install it there, or leave --peer out")
    command = [str(python or sys.executable), str(PEER)]
    pipe = subprocess.PIPE
    env = {**os.environ, **SAME_ALLOCATOR}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=env) as process:
        yield Peer(process)
        _stream(process.stdin).close()


def timed(codec: str, array: np.ndarray) -> tuple[float, float, float, float]:
    """Seconds out and back, the share of the bytes that travels, and the mean squared error."""
    start = time.perf_counter()
    packed = pack(codec, [array])
    middle = time.perf_counter()
    (block,) = unpack(packed.blocks, packed.note)
    end = time.perf_counter()
    error = float(np.mean((block.numpy() - array) ** 2, dtype=float))
    return middle - start, end - middle, packed.nbytes / array.nbytes, error


def measure(codec: str, data: str, array: np.ndarray, rounds: int, other: Peer | None) -> Timing:
    """Rounds of one codec and, where it has one like it, of the peer; the first is not counted."""
    ours, theirs = [], []
    for _ in range(rounds + 1):
        ours.append(timed(codec, array))
        if other is not None and codec == "blockwise8":
            theirs.append(other.timed(array.size))
    out, back, shares, errors = zip(*ours[1:], strict=True)
    peer_out, peer_back, peer_errors = zip(*theirs[1:], strict=True) if theirs else ((), (), (None,))
    return Timing(codec, data, array.nbytes, out, back, shares[0], errors[0], peer_out, peer_back, peer_errors[0])


def arrays(nbytes: int) -> dict[str, np.ndarray]:
    """What is sent, by name."""
    random = np.random.default_rng(0)
    normal = random.standard_normal(nbytes // 4, np.float32)
    return {"normal": normal, "ids": random.integers(0, 50257, nbytes // 8)}


def main() -> None:
    """Read the flags, time on one core, and tell."""
    keep_freed()  # as a training process does
    options, cores = tyro.cli(Options, prog="python -m benchmarks.codecs"), os.sched_getaffinity(0)
    if options.torch:
        import torch

        torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(cores)})
    with peer(options.peer) as other:
        rows = [
            measure(codec, data, array, options.rounds, other)
            for mib in options.mib
            for data, array in arrays(mib << 20).items()
            for codec in (codec_names() if data == "normal" else ["zstd"])
        ]
    os.sched_setaffinity(0, cores)
    overlaps = [measure_overlap(codec, 64 << 20, options.rounds) for codec in ("blockwise8", "zstd")]
    tell(options, plain(options, rows, overlaps), lambda: as_table(rows, overlaps, other is not None))


def plain(options: Options, rows: list[Timing], overlaps: list[Overlap]) -> dict[str, Any]:
    """One object of all that was timed."""
    tables = {"rows": [row.to_dict() for row in rows], "overlap": [asdict(overlap) for overlap in overlaps]}
    return {"torch": options.torch, "rounds": options.rounds, **tables}


def as_table(rows: list[Timing], overlaps: list[Overlap], beside: bool) -> str:
    """A line a codec and size; then what codecs do beside other work."""
    ways = "".join(f"{way:>21}" for way in ("out GB/s", "back GB/s"))
    head = f"{'MiB':>6}  {'codec':<12}{'data':<8}{ways}{'out':>8}{'back':>8}{'bytes':>8}{'error':>11}"
    over = (
        "ratios: beside bitsandbytes, median of rounds" if beside else "bitsandbytes: not installed; give --peer PYTHON"
    )
    return "\n".join([head, *(row.row() for row in rows), over, *(overlap.line() for overlap in overlaps)])


if __name__ == "__main__":
    sys.exit(program(main))
