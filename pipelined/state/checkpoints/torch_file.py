"""A file as `torch.save` writes one, written tensor by tensor, so that no two need to be in memory.

It is a zip archive: a pickle of the state that names its storages, and the bytes of each storage. The pickle is made
from placeholders: tensors of the right shapes with storages that were freed.
"""

import io
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import torch

from pipelined.process.whole_file import whole_file
from pipelined.state.tensor_specs import TensorSpecs

ALIGNMENT = 64
"""A storage begins at a multiple of this number of bytes, so that it can be mapped; as `torch.save` aligns it."""
LOCAL_HEADER = 30
"""Bytes of the header before an entry's bytes, without its name and its extra fields."""
ZIP64_FIELD = 20
"""Bytes of the extra field that `zipfile` adds to a header with sizes of 64 bits."""


def make_placeholders(specs: TensorSpecs) -> dict[str, torch.Tensor]:
    """Tensors of these dtypes and shapes without memory."""
    tensors = {name: torch.empty(tuple(shape), dtype=getattr(torch, dtype)) for name, (dtype, shape) in specs.items()}
    for tensor in tensors.values():
        tensor.untyped_storage().resize_(0)
    return tensors


def write_torch_file(
    path: Path,
    state: Mapping[str, torch.Tensor],
    placeholders: Mapping[str, torch.Tensor],
    tensors: Iterable[tuple[str, torch.Tensor]],
) -> None:
    """Write a file that `torch.load` reads as a dict, whole or not at all.

    Args:
        state: what the dict has: placeholders, which may stand under several names, and tensors.
        placeholders: every placeholder, by the name under which its values come.
        tensors: the values, one after another.
    Raises:
        OSError: it cannot be written; an earlier file is as it was.
    Cost: memory for one tensor, where it is not contiguous on the host.
    """
    with whole_file(path, durable=True) as part, ZipFile(part, "w", ZIP_STORED) as archive:
        _write(archive, dict(state), placeholders, tensors)


def _write(
    archive: ZipFile,
    state: dict[str, torch.Tensor],
    placeholders: Mapping[str, torch.Tensor],
    tensors: Iterable[tuple[str, torch.Tensor]],
) -> None:
    content = io.BytesIO()
    sizes = {tensor.untyped_storage()._cdata: tensor.numel() * tensor.itemsize for tensor in placeholders.values()}
    pickler = _Pickler(content, sizes)
    pickler.dump(state)
    _write_frame(archive, content.getvalue())
    keys = pickler.keys
    for name, tensor in tensors:
        if key := keys.pop(placeholders[name].untyped_storage()._cdata, None):
            _add(archive, key, tensor)
        del tensor  # before the next one comes
    for value in state.values():  # what a model keeps without training it
        if key := keys.pop(value.untyped_storage()._cdata, None):
            storage_bytes = torch.empty(0, dtype=torch.uint8, device=value.device)
            _add(archive, key, storage_bytes.set_(value.untyped_storage()))


class _Pickler(pickle.Pickler):
    """Pickles tensors as `torch.save` does, with the size that the storage of a placeholder will have.

    Args:
        sizes: of the placeholders' storages, in bytes.
    Attributes:
        keys: the name of each storage in the file.
    """

    def __init__(self, file: io.BytesIO, sizes: Mapping[int, int]):
        super().__init__(file, protocol=2)
        self._sizes = sizes
        self.keys = dict[int, str]()

    def persistent_id(self, obj: Any) -> tuple[str, type, str, str, int] | None:
        """What stands in the pickle for a storage: its type, its name, its device and its number of elements."""
        if isinstance(obj, torch.storage.TypedStorage):
            storage = obj._untyped_storage
            width = obj._element_size()
            kind = getattr(torch, obj._pickle_storage_type())
        elif isinstance(obj, torch.UntypedStorage):
            storage = obj
            width = 1
            kind = torch.UntypedStorage
        else:
            return None
        key = self.keys.setdefault(storage._cdata, str(len(self.keys)))
        return "storage", kind, key, "cpu", self._sizes.get(storage._cdata, storage.nbytes()) // width


def _write_frame(archive: ZipFile, content: bytes) -> None:
    """Write the pickle, and what this release of torch puts beside it: versions and the order of bytes."""
    empty = io.BytesIO()
    torch.save({}, empty)
    with ZipFile(empty) as frame:
        for name in frame.namelist():
            record = name.partition("/")[2]
            if record != ".data/serialization_id":  # a hash of the content, which is another one
                archive.writestr(f"archive/{record}", content if record == "data.pkl" else frame.read(name))


def _add(archive: ZipFile, key: str, tensor: torch.Tensor) -> None:
    """Write the bytes of a tensor as a storage."""
    memory = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    entry = ZipInfo(f"archive/data/{key}")
    assert archive.fp is not None
    header = archive.fp.tell() + LOCAL_HEADER + len(entry.filename) + ZIP64_FIELD + 4
    padding = -header % ALIGNMENT
    entry.extra = b"FB" + padding.to_bytes(2, "little") + bytes(padding)
    with archive.open(entry, "w", force_zip64=True) as file:
        file.write(memory.data)
