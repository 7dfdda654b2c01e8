"""The codecs' benchmark: errors and bytes are measured, and without a peer it says so."""

import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.codecs import arrays, measure, peer
from benchmarks.links.codec_overlap import measure_overlap
from pipelined.errors import UsageError


def test_a_codec_is_measured_with_its_true_error_and_bytes():
    values = arrays(1 << 20)["normal"]
    row = measure("blockwise8", "normal", values, 2, None)
    assert row.share == pytest.approx(0.25, rel=1e-3) and row.error == pytest.approx(1.685e-4, rel=0.05)
    assert len(row.out_s) == len(row.back_s) == 2 and row.peer_out_s == ()
    assert measure("zstd", "ids", np.zeros(1000), 1, None).error == 0


class Answers:
    """A peer that always takes as long."""

    def __init__(self):
        self.asked = []

    def timed(self, count):
        self.asked.append(count)
        return 0.5, 0.25, 1e-4


def test_the_other_library_is_timed_once_a_round_where_it_has_such_a_codec():
    peer, values = Answers(), np.ones(1000, np.float32)
    row = measure("blockwise8", "normal", values, 2, peer)
    assert peer.asked == [1000] * 3 and (row.peer_out_s, row.peer_back_s) == ((0.5, 0.5), (0.25, 0.25))
    assert row.peer_error == 1e-4 and measure("bf16", "normal", values, 1, peer).peer_out_s == ()
    assert len(peer.asked) == 3


def test_a_coder_beside_computing_is_timed():
    found = measure_overlap("blockwise8", 1 << 16, 1)
    assert min(found.alone_s, found.work_s, found.both_s) > 0 and found.late_s >= 0 and found.cores >= 1


def test_a_peer_without_bitsandbytes_is_refused_before_anything_is_timed(tmp_path):
    empty = tmp_path / "python"
    empty.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    empty.chmod(0o755)
    for python in (empty, Path("/no/python")):
        with pytest.raises(UsageError, match="no Python with bitsandbytes"), peer(python):
            pass
