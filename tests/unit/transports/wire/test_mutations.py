"""Mutated frames by the million bytes: each stream gives frames or a WireError, and nothing else."""

import random
import sys
from collections import Counter
from importlib.util import find_spec

import pytest

from tests.launching import launched
from tests.unit.transports.wire.wire_streams import Kind, frames, read, spoilt

CI_BYTES, FULL_BYTES = 1_000_000, 10_000_000


@pytest.mark.parametrize("budget", [CI_BYTES, pytest.param(FULL_BYTES, marks=pytest.mark.full)])
def test_mutated_frames_give_frames_or_a_wire_error(budget):
    rng, sound, nbytes, counts = random.Random(budget), frames(), 0, Counter()
    while nbytes < budget:
        stream = spoilt(rng, sound)
        counts[read(stream, rng.choice((1, 3, 20, 1000)))] += 1
        nbytes += len(stream)
    assert counts[0] and counts[1] and counts[4], counts  # neither all refused nor all taken


def test_the_mutated_frames_are_valid_and_of_every_kind():
    assert [read(frame, 1000) for frame in frames()] == [1] * len(frames())
    assert {frame[5] for frame in frames()} == set(Kind)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not installed; pip install pipelined[fuzz]")
def test_frames_mutated_towards_unseen_code_give_frames_or_a_wire_error(tmp_path):
    program = [sys.executable, "-m", "tests.unit.transports.wire.fuzz_wire", str(FULL_BYTES), str(tmp_path)]
    done = launched(program, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"bytes: {FULL_BYTES}" in done.stdout
