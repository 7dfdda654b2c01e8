"""What the parts of one rank's end over MPI share."""

from dataclasses import dataclass

from mpi4py import MPI

from transports.base import EndState
from transports.mailbox import Mailbox
from transports.mpi.bodies import Bodies, ReceivedFrame
from transports.mpi.channels import MpiChannels
from transports.mpi.node import NodePeers
from transports.mpi.progress import ProgressEngine
from transports.wire.frames import WireLimits


@dataclass(frozen=True, slots=True)
class MpiEnd:
    """One rank's end, as `MpiTransport.open` builds it.

    Args:
        world: the communicator of all ranks; it is only duplicated and, by `MpiTransport.kill_world`, aborted.
        comms: three duplicates of `world`, for frames, bodies and bare buffers, which the end owns.
        nodes: for each rank, the lowest rank on its node.
        oversubscribed: whether the node has fewer cores than ranks, so that another rank may need this rank's core.
        inline: bodies up to this many bytes are sent with their header and need no posted receive.
    """

    world: MPI.Intracomm
    comms: tuple[MPI.Intracomm, MPI.Intracomm, MPI.Intracomm]
    state: EndState
    mailbox: Mailbox[ReceivedFrame]
    progress: ProgressEngine
    node_peers: NodePeers
    bodies: Bodies
    channels: MpiChannels
    limits: WireLimits
    nodes: tuple[int, ...]
    oversubscribed: bool
    inline: int

    @property
    def frames(self) -> MPI.Intracomm:
        """The communicator of frames."""
        return self.comms[0]
