"""The other ranks of this node: their doorbells, and the arenas that carry bodies between them.

Both are optional: a rank without a doorbell polls, and a body without shared memory goes over MPI. So the sender does
not check which ranks are on its node.
"""

from array import array
from collections.abc import Sequence

from mpi4py import MPI

from transports.mpi.poll_loop import SleepState
from transports.mpi.progress import ProgressEngine
from transports.shm.arena import Arena, PeerArena
from transports.shm.cores import MASK_BYTES, count_cores, own_mask
from transports.shm.doorbell import NAME_BYTES, Doorbell
from transports.shm.memfd import HANDLE_BYTES
from transports.wire.arrays import Block


class NodePeers:
    """This rank's doorbell and arena, and those of the other ranks of its node, which all construct this at once.

    Args:
        node: the communicator of the node's ranks.
        world: the communicator of all ranks.
        cores: the number of distinct cores that the node's ranks may run on.
        arena: the memory for the bodies that this rank sends; as large as those of its peers.
        engine: polls when a peer has rung.
    Attributes:
        nodes: for each rank of the world, the lowest rank on its node.
        oversubscribed: whether the node has fewer cores than ranks, so that another rank may need this rank's core.
        can_ring_all: whether this rank can ring every other rank of the node.
    """

    def __init__(self, node: MPI.Comm, world: MPI.Comm, cores: int, arena: Arena, engine: ProgressEngine):
        self.nodes = _nodes_of(world, node)
        self.oversubscribed = node.size > cores
        self._doorbell = Doorbell(engine.on_doorbell)
        self._arena = arena
        self._arenas: dict[int, PeerArena | None] = {}
        ranks = array("q", _gather_bytes(node, array("q", [world.rank]).tobytes()))
        handles = _split_bytes(_gather_bytes(node, self._arena.handle), HANDLE_BYTES)
        self._handles = {peer: handle for peer, handle in zip(ranks, handles, strict=True) if peer != world.rank}
        mapped = [self._can_map(peer) for peer in ranks]
        rows = _split_bytes(_gather_bytes(node, bytes(mapped)), node.size)
        self._mapping_peers = frozenset(peer for peer, row in zip(ranks, rows, strict=True) if row[node.rank])
        names = _split_bytes(_gather_bytes(node, self._doorbell.name), NAME_BYTES)
        self.can_ring_all = self._doorbell.connect(dict(zip(ranks, names, strict=True)))

    def ring(self, peer: int) -> None:
        """Wake this peer if it is on this node and asleep, because a message for it has been sent."""
        arena = self._arenas.get(peer) or self._peer_arena(peer)
        if arena is None or arena.mark_awake():
            self._doorbell.ring(peer)

    def ring_if_idle(self, peer: int) -> None:
        """As `ring`, before the message is sent; does not wake a peer that computes."""
        arena = self._arenas.get(peer) or self._peer_arena(peer)
        if arena is not None and arena.sleep_state == SleepState.IDLE:
            self.ring(peer)

    def put(self, peer: int, blocks: Sequence[Block]) -> int | None:
        """Copy the blocks into memory that the peer can map. Returns their first page.

        Returns: None if there is no such memory; the blocks must then go over MPI.
        """
        return self._arena.put(blocks) if peer in self._mapping_peers else None

    def view(self, peer: int, page: int, nbytes: int) -> memoryview:
        """View the body that the peer stored at this page.

        Raises:
            WireError: no body can be there. OSError: the peer and its memory are gone.
        """
        arena = self._peer_arena(peer)
        if arena is None:
            raise FileNotFoundError(f"rank {peer} shares no memory with this one")
        return arena.view(page, nbytes)

    def close(self) -> None:
        """Free everything except the memory of received bodies that arrays still view."""
        self._doorbell.close()
        self._arena.close()
        self._arenas = {}
        self._handles = {}
        self._mapping_peers = frozenset()

    def _can_map(self, peer: int) -> bool:
        """Whether this rank can map that peer's arena; the mapping is closed again."""
        try:
            return peer in self._handles and PeerArena(self._handles[peer], self._arena.nbytes) is not None
        except OSError:
            return False

    def _peer_arena(self, peer: int) -> PeerArena | None:
        """The peer's arena, mapped at first use: each mapping is a descriptor, and select(2) is limited to 1,024.

        A thread may call this while the loop closes the arenas.
        """
        arenas = self._arenas
        handle = self._handles.get(peer)
        if peer not in arenas and handle is not None:
            try:
                arenas[peer] = PeerArena(handle, self._arena.nbytes)
            except OSError:
                arenas[peer] = None
        return arenas.get(peer)


def _nodes_of(world: MPI.Comm, node: MPI.Comm) -> tuple[int, ...]:
    """The number of each rank's node in the world (the node's lowest rank). Collective: all ranks must call this."""
    lowest = array("q", [0])
    node.Allreduce([array("q", [world.rank]), MPI.INT64_T], [lowest, MPI.INT64_T], MPI.MIN)
    return tuple(array("q", _gather_bytes(world, lowest.tobytes())))


def cores_of(node: MPI.Comm) -> int:
    """The number of distinct cores that the node's ranks may run on. Collective: all of them must call this."""
    return count_cores(_split_bytes(_gather_bytes(node, own_mask()), MASK_BYTES))


def _gather_bytes(comm: MPI.Comm, data: bytes) -> bytes:
    """The bytes of every rank, concatenated in rank order; all have the same length."""
    gathered = bytearray(len(data) * comm.size)
    comm.Allgather([data, MPI.BYTE], [gathered, MPI.BYTE])
    return bytes(gathered)


def _split_bytes(data: bytes, length: int) -> list[bytes]:
    return [data[start : start + length] for start in range(0, len(data), length)]
