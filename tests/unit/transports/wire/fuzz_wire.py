"""Frames mutated by atheris, which looks for inputs that reach code not reached before.

`python -m tests.unit.transports.wire.fuzz_wire BYTES FOLDER` feeds so many bytes, keeps what is of interest in the
folder, and ends with code 0; at any other exception than the wire's own it ends with that and leaves the input
there.
"""

import os
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["transports"]):
    from tests.unit.transports.wire.wire_streams import frames, read

MOST = 4096


class Target:
    """Takes one input after another until there were enough bytes.

    Args:
        budget: bytes.
    """

    def __init__(self, budget: int):
        self._budget = self._left = budget

    def __call__(self, data: bytes) -> None:
        read(data[1:], 1 + (data[0] if data else 0) * 8)
        self._left -= len(data)
        if self._left <= 0:
            print(f"bytes: {self._budget}", flush=True)
            os._exit(0)  # libFuzzer has no way to be told that it is enough


def main() -> None:
    """Start from one sound frame of every kind."""
    budget, folder = int(sys.argv[1]), Path(sys.argv[2])
    for number, frame in enumerate(frames()):
        (folder / f"frame-{number}").write_bytes(bytes([255]) + frame)
    words = [sys.argv[0], f"-max_len={MOST}", f"-artifact_prefix={folder}/", "-seed=1", str(folder)]
    atheris.Setup(words, Target(budget))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
