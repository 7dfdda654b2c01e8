"""Memory that processes of one machine share and that has no name: when the last of them is gone, so is it.

It is a file in memory, which its owner makes and the others find by way of /proc. The one rule: nobody trusts an
address. The file must bear the owner's token, which another container's process of the same number does not, and be
sealed against shrinking, so that no access to it can ever fail. Knows no ranks.
"""

import fcntl
import mmap
import os
import secrets
import sys
from struct import Struct

TOKEN_BYTES = 16
_ADDRESS = Struct(f"=qq{TOKEN_BYTES}s")
ADDRESS_BYTES = _ADDRESS.size
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW if sys.platform == "linux" else 0


class Lent:
    """Memory of this process for others to map.

    Args:
        nbytes: how much; pages that are never touched take no memory. The first `TOKEN_BYTES` bear the token.
    Attributes:
        memory: the memory itself, zeros; None once closed.
        address: what others must know to map it, `ADDRESS_BYTES` long.
    Raises:
        OSError: there is no such memory on this system, or none left.
    """

    def __init__(self, nbytes: int):
        if sys.platform != "linux":
            raise OSError(f"no memory without a name here (system: {sys.platform}); Linux has it")
        self._file = os.memfd_create("pipelined", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._file, nbytes)
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, _SEALS)
            self.memory: mmap.mmap | None = mmap.mmap(self._file, nbytes)
        except OSError:
            os.close(self._file)
            raise
        token = secrets.token_bytes(TOKEN_BYTES)
        self.memory[:TOKEN_BYTES] = token
        self.address = _ADDRESS.pack(os.getpid(), self._file, token)

    def close(self) -> None:
        """Let no further process map it. Others that have mapped it keep it, as does this one while it is viewed."""
        if self._file >= 0:
            os.close(self._file)
            self._file, self.memory = -1, None  # for a mapping has a descriptor of its own


def mapped(address: bytes, nbytes: int) -> mmap.mmap:
    """Map what another process has lent.

    Raises:
        OSError: it cannot be found, or is not what the address says: another machine's or container's, too small, not
            sealed, or gone.
    """
    process, number, token = _ADDRESS.unpack(address)
    file = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.pread(file, TOKEN_BYTES, 0) != token or os.fstat(file).st_size < nbytes:
            raise FileNotFoundError(f"another file than was lent (process: {process}, descriptor: {number})")
        if fcntl.fcntl(file, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise PermissionError(f"the memory may still shrink (process: {process}, descriptor: {number})")
        return mmap.mmap(file, nbytes)
    finally:
        os.close(file)
