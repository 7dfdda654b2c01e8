"""A state in chunks: known sizes, any order, any cut, and no byte that its hash does not bear out."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelined.state.stages.chunks import CHUNK, DIGEST, Download, Manifest, TransferError, chunk_of, describe, expect
from pipelined.state.tensor_specs import specs_of
from transports import Block
from transports.wire.frames import LIMITS

DTYPES = ["float32", "float64", "int64", "uint8", "bool"]


@st.composite
def states(draw) -> dict[str, np.ndarray]:
    names = draw(st.lists(st.text("abc/.", min_size=1, max_size=6), unique=True, max_size=6))
    seed = np.random.default_rng(draw(st.integers(0, 99)))
    state = {}
    for name in names:
        shape = draw(st.lists(st.integers(0, 5), max_size=3))
        dtype = draw(st.sampled_from(DTYPES))
        state[name] = np.array(seed.integers(0, 2 if dtype == "bool" else 99, shape)).astype(dtype)
    return state


def download(state: dict[str, np.ndarray], chunk: int) -> Download:
    told = describe(state, chunk)
    return Download(expect(specs_of(state), told.digests, told.root, chunk))


@given(state=states(), chunk=st.integers(1, 64), data=st.data())
def test_chunks_in_any_order_give_the_state_back(state: dict[str, np.ndarray], chunk: int, data):
    arriving, donor = download(state, chunk), describe(state, chunk)
    for index in data.draw(st.permutations(range(donor.chunks))):
        assert index in arriving.missing
        assert arriving.add(index, chunk_of(state, donor, index))
        assert not arriving.add(index, chunk_of(state, donor, index))
    assert not arriving.missing
    whole = arriving.finish()
    assert {name: (array.dtype.name, array.shape, array.tobytes()) for name, array in state.items()} == {
        name: (block.dtype, block.shape, bytes(block.data)) for name, block in whole.items()
    }
    assert describe(whole, chunk).root == donor.root


@given(state=states(), chunk=st.integers(1, 64))
def test_chunks_are_the_bytes_of_the_tensors_by_name_and_all_but_the_last_are_full(state, chunk: int):
    manifest = describe(state, chunk)
    parts = [
        b"".join(bytes(part.data) for part in chunk_of(state, manifest, index)) for index in range(manifest.chunks)
    ]
    run = b"".join(state[name].tobytes() for name in sorted(state))
    assert b"".join(parts) == run
    assert manifest.nbytes == len(run)
    assert [len(part) for part in parts] == [manifest.size(index) for index in range(manifest.chunks)]
    assert all(len(part) == chunk for part in parts[:-1])
    assert [hashlib.blake2b(p, digest_size=32).digest() for p in parts] == [
        manifest.digest(index) for index in range(manifest.chunks)
    ]


@given(state=states(), chunk=st.integers(1, 64), data=st.data())
def test_parts_may_be_cut_in_other_ways(state, chunk: int, data):
    arriving, donor = download(state, chunk), describe(state, chunk)
    for index in range(donor.chunks):
        raw = b"".join(bytes(part.data) for part in chunk_of(state, donor, index))
        at = data.draw(st.integers(0, len(raw)))
        arriving.add(index, [Block.of(raw[:at]), Block.of(raw[at:])])
    assert describe(arriving.finish(), chunk).root == donor.root


@given(state=states(), chunk=st.integers(1, 64), data=st.data())
def test_one_changed_byte_is_refused_and_the_right_one_taken_afterwards(state, chunk: int, data):
    arriving, donor = download(state, chunk), describe(state, chunk)
    for index in range(donor.chunks):
        raw = bytearray(b"".join(bytes(part.data) for part in chunk_of(state, donor, index)))
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] ^= data.draw(st.integers(1, 255))
        with pytest.raises(TransferError, match=f"chunk {index} is not the one asked for"):
            arriving.add(index, [Block.of(raw)])
        assert index in arriving.missing
        arriving.add(index, chunk_of(state, donor, index))
    assert describe(arriving.finish(), chunk).root == donor.root


def test_chunks_are_views_of_at_most_4_mib():
    state = {"a": np.zeros(3, np.float32), "b": np.zeros(CHUNK // 4, np.float32), "c": np.ones(2, np.int64)}
    manifest = describe(state)
    assert CHUNK == 4 << 20
    assert [manifest.size(index) for index in range(manifest.chunks)] == [CHUNK, 28]
    first, last = chunk_of(state, manifest, 0), chunk_of(state, manifest, 1)
    assert [part.nbytes for part in first] == [12, CHUNK - 12]
    assert [part.nbytes for part in last] == [12, 16]
    state["b"][-1] = 5.0
    assert np.frombuffer(last[0].data, np.float32).tolist() == [0.0, 0.0, 5.0]


def test_a_resumed_download_asks_for_what_is_missing_alone():
    state = {"x": np.arange(100, dtype=np.uint8)}
    arriving, donor = download(state, 10), describe(state, 10)
    for index in (7, 0, 3):
        arriving.add(index, chunk_of(state, donor, index))
    assert list(arriving.missing) == [1, 2, 4, 5, 6, 8, 9]
    with pytest.raises(TransferError, match="missing: 7 of 10, first: 1"):
        arriving.finish()


def test_a_state_of_no_bytes_is_whole_from_the_start():
    assert download({}, 4).finish() == {}
    (block,) = download({"none": np.zeros((0, 3))}, 4).finish().values()
    assert (block.dtype, block.shape) == ("float64", (0, 3))


@pytest.mark.parametrize(
    "other",
    [
        {"x": np.arange(4, dtype=np.int64)[::-1]},
        {"y": np.arange(4, dtype=np.int64)},
        {"x": np.arange(4, dtype=np.int64).reshape(2, 2)},
        {"x": np.arange(4, dtype=np.int64).view(np.float64)},
        {"x": np.arange(4, dtype=np.int64), "y": np.zeros(0)},
    ],
    ids=["bytes", "name", "shape", "dtype", "empty tensor"],
)
def test_whatever_differs_gives_another_root(other: dict[str, np.ndarray]):
    assert describe({"x": np.arange(4, dtype=np.int64)}).root != describe(other).root


def test_the_root_does_not_depend_on_the_order_of_a_mapping():
    state = {"x": np.arange(4), "a": np.arange(3)}
    assert describe(state).root == describe(dict(reversed(state.items()))).root


STATE = {"x": np.arange(100, dtype=np.uint8)}
TRUE = describe(STATE, 10)


@pytest.mark.parametrize(
    ("digests", "root", "message"),
    [
        (TRUE.digests[:-1], TRUE.root, "digests: 319 bytes, chunks here: 10"),
        (TRUE.digests * 1000, TRUE.root, "digests: 320000 bytes, chunks here: 10"),
        (b"", TRUE.root, "digests: 0 bytes, chunks here: 10"),
        (bytes(10 * DIGEST), TRUE.root, f"expected: {TRUE.root.hex()}"),
        (TRUE.digests, bytes(DIGEST), f"expected: {bytes(DIGEST).hex()}"),
    ],
)
def test_a_hostile_manifest_is_refused_before_memory_is_taken(digests, root, message: str):
    with pytest.raises(TransferError, match=message):
        expect(specs_of(STATE), digests, root, 10)


@pytest.mark.parametrize("index", [-1, 10, 1 << 80, True, None, "3", 0.0])
def test_an_unknown_chunk_is_refused_by_donor_and_receiver(index):
    with pytest.raises(TransferError, match="no such chunk"):
        chunk_of(STATE, TRUE, index)
    with pytest.raises(TransferError, match="no such chunk"):
        Download(TRUE).add(index, [])


@pytest.mark.parametrize("size", [0, 9, 11, 1000])
def test_a_chunk_of_another_size_is_refused(size: int):
    with pytest.raises(TransferError, match=rf"chunk 3 of another size \(bytes: {size}, expected: 10\)"):
        Download(TRUE).add(3, [Block.of(bytes(size))])


def test_a_manifest_on_the_wire_is_read_again_and_anything_else_is_refused():
    manifest = describe({"b": np.zeros((2, 3)), "a": np.ones((), np.int64)}, 20)
    assert Manifest.unpack(manifest.pack()) == manifest
    short = Manifest(manifest.specs, manifest.digests[DIGEST:], 20).pack()
    for packed in (
        b"",
        b"\x00",
        short,
        Manifest(manifest.specs, b"", 0).pack(),
        Manifest({"a": ("no", ())}, b"").pack(),
        *(Manifest({"a": ("uint8", (size,))}, bytes(DIGEST)).pack() for size in (2.0, True, None)),
        Manifest({"a": ("uint8", (-1, -2))}, bytes(DIGEST)).pack(),
        Manifest({7: ("uint8", (2,))}, bytes(DIGEST)).pack(),
        Manifest({"a": ("uint8", (2,))}, "d" * DIGEST).pack(),
        Manifest({"a": ("uint8", (2,))}, bytes(DIGEST), 4.0).pack(),
    ):
        with pytest.raises(TransferError, match="manifest"):
            Manifest.unpack(packed)


def test_it_needs_no_torch():
    code = "import sys, pipelined.state.stages.chunks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("tensors", [LIMITS.blocks, LIMITS.blocks + 15])
def test_a_chunk_of_many_small_tensors_fits_one_message(tensors: int):
    state = {f"{number}/value": np.full(3, number, np.float32) for number in range(tensors)}
    parts = chunk_of(state, describe(state), 0)
    assert len(parts) <= LIMITS.blocks
    arriving = download(state, CHUNK)
    arriving.add(0, parts)
    assert all(np.array_equal(arriving.finish()[name].numpy(), array) for name, array in state.items())
