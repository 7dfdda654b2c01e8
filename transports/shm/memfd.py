"""Shared memory without a name, for processes of one machine; the kernel frees it when the last process unmaps it.

It is a file in memory (memfd): its owner creates it, and the others open it through /proc. A handle is checked before
use. The file must contain the owner's token, because a process of another container may have the same number; and it
must be sealed against shrinking, because an access beyond its end would kill the process.
"""

import fcntl
import mmap
import os
import secrets
import sys
from struct import Struct

TOKEN_BYTES = 16
_HANDLE = Struct(f"=qq{TOKEN_BYTES}s")
HANDLE_BYTES = _HANDLE.size
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW if sys.platform == "linux" else 0


class MemoryFile:
    """Memory of this process that other processes may map.

    Args:
        nbytes: its size; pages that are never touched take no memory. The first `TOKEN_BYTES` hold the token.
    Attributes:
        handle: what other processes need to map it, `HANDLE_BYTES` long.
    Raises:
        OSError: the system has no such memory, or none is left.
    """

    def __init__(self, nbytes: int):
        if sys.platform != "linux":
            raise OSError(f"no memory without a name here (system: {sys.platform}); Linux has it")
        self._file = os.memfd_create("pipelined", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._file, nbytes)
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, _SEALS)
            self._memory: mmap.mmap | None = mmap.mmap(self._file, nbytes)
        except OSError:
            os.close(self._file)
            raise
        token = secrets.token_bytes(TOKEN_BYTES)
        self.memory[:TOKEN_BYTES] = token
        self.handle = _HANDLE.pack(os.getpid(), self._file, token)

    @property
    def memory(self) -> mmap.mmap:
        """The memory, initially zeros. Raises ValueError once closed."""
        if self._memory is None:
            raise ValueError("this memory is closed")
        return self._memory

    def close(self) -> None:
        """Let no further process map it. Processes that have mapped it keep it; this process, while a view exists."""
        if self._file >= 0:
            os.close(self._file)
            self._file, self._memory = -1, None  # the mapping has a descriptor of its own


def map_memory(handle: bytes, nbytes: int) -> mmap.mmap:
    """Map the memory that another process offers by this handle.

    Raises:
        OSError: it is not found or does not match its handle: another machine or container, too small, not sealed,
            or gone.
    """
    process, number, token = _HANDLE.unpack(handle)
    file = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.pread(file, TOKEN_BYTES, 0) != token or os.fstat(file).st_size < nbytes:
            raise FileNotFoundError(f"the descriptor is not the shared file (process: {process}, descriptor: {number})")
        if fcntl.fcntl(file, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise PermissionError(f"the memory may still shrink (process: {process}, descriptor: {number})")
        return mmap.mmap(file, nbytes)
    finally:
        os.close(file)
