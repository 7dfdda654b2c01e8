"""A safetensors file that is written tensor by tensor, so that no two need to be in memory.

The format begins with the header's length in 8 bytes and the header, JSON that may end in blanks; then come the
tensors. Where they lie is known last, so room is left for the longest header.
Source: https://huggingface.co/docs/safetensors
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from apps.common.lm.models.gpt2_presets import Shapes

if TYPE_CHECKING:
    import torch

DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""How the header calls the dtypes of parameters."""
ABOUT = {"__metadata__": {"format": "pt"}}
"""What the header has beside the tensors."""


def header_room(shapes: Shapes) -> int:
    """Bytes of the longest header of a file with some of these tensors; a multiple of 8, which aligns them."""
    entries = {name: {"dtype": "BF16", "shape": shape, "data_offsets": [10**20] * 2} for name, shape in shapes.items()}
    return len(json.dumps(ABOUT | entries).encode()) // 8 * 8 + 8


class TensorFile:
    """A file as it is written.

    Args:
        path: where it is created.
        room: see `header_room`.
    Attributes:
        nbytes: of the tensors so far, which all have one dtype.
    """

    def __init__(self, path: Path, room: int):
        self._file: BinaryIO = path.open("wb")
        self._file.seek(8 + room)
        self._room = room
        self.nbytes = 0
        self._tensors = dict[str, Any]()

    def add(self, name: str, tensor: "torch.Tensor") -> None:
        """Write a tensor. Cost: no memory, if it is contiguous and on the host."""
        import torch

        memory = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
        offsets = [self.nbytes, self.nbytes + memory.nbytes]
        dtype = DTYPES[str(tensor.dtype).removeprefix("torch.")]
        self._tensors[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": offsets}
        self._file.write(memory)
        self.nbytes = offsets[1]

    def finish(self) -> None:
        """Write the header, and close the file."""
        header = json.dumps(ABOUT | self._tensors).encode().ljust(self._room)
        self._file.seek(0)
        self._file.write(self._room.to_bytes(8, "little") + header)
        self.close()

    def close(self) -> None:
        """Close the file; without `finish` it cannot be read."""
        self._file.close()
