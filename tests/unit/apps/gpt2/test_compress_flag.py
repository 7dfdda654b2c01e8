"""`--compress` is checked before anything is built, and recorded with the run."""

import pytest

from apps.gpt2.config import parse
from apps.gpt2.job import resolve
from pipelined.errors import UsageError
from pipelined.training.exchange.compression import check_codec


@pytest.mark.parametrize("name", ["none", "zstd", "zstd:9", "blockwise8", "blockwise8:256", "fp16", "bf16"])
def test_a_codec_is_recorded_in_what_checkpoints_keep(name):
    check_codec(name, "--compress")
    assert resolve(parse(["--compress", name]), 1).to_dict()["compress"] == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gzip", "unknown codec 'gzip'; known: bf16, blockwise8, fp16, zstd; or none"),
        ("zstd:99", "zstd takes a number from 1 to 19"),
        ("bf16:2", "bf16 takes no argument"),
        ("", "unknown codec ''"),
    ],
)
def test_what_is_no_codec_is_refused_with_the_known_ones(name, message):
    with pytest.raises(UsageError, match=message):
        check_codec(name, "--compress")
