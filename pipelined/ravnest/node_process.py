"""A node's process, from what it trains to its end. Imports torch.

The programs build a `NodeSession` from the directory's record; flags and stop requests stay with them.
"""

from dataclasses import dataclass

from pipelined.actors.device.executor import Executor
from pipelined.actors.device.host_memory import PeakMemory
from pipelined.measurement.timed.line import serve_line
from pipelined.membership.connection import LocalMember
from pipelined.process.reporting.progress import Say
from pipelined.ravnest.node.cluster_member import ClusterMember
from pipelined.ravnest.node.node import Capacity, RavnestNode
from pipelined.ravnest.node.planned_memory import PlannedPlaces
from pipelined.ravnest.node.ravnest_training import RavnestTraining
from pipelined.ravnest.stage.orders import OrderDirectory
from pipelined.ravnest.stage.saving import SaveSettings
from transports.rpc.world import Worlds

MAX_BYTES = 1 << 30
"""The largest message that a node takes from another."""


@dataclass(frozen=True, kw_only=True)
class NodeSession:
    """What a node trains, and what it keeps of it.

    Args:
        revision: of the directory's record of what is trained.
        planned_places: what places are planned to hold, for the error where memory runs out.
        lease_s: seconds without a heartbeat after which the node is removed.
        saving: where it saves its stage; None: nowhere.
        orders: where it records its order; None: nowhere.
    """

    training: RavnestTraining
    revision: int
    planned_places: PlannedPlaces
    lease_s: float
    saving: SaveSettings | None = None
    orders: OrderDirectory | None = None


async def run_node(
    local: LocalMember,
    session: NodeSession,
    executor: Executor,
    capacity: Capacity,
    say: Say,
    *,
    memory: PeakMemory | None = None,
) -> None:
    """Join as a node, and take part until cancelled.

    Args:
        local: this process; its name is unique among the nodes.
        executor: computes its stages.
        capacity: what it offers.
        say: prints a line.
        memory: of this process, if it is the node's alone.
    Raises: as `RavnestNode.run`.
    """
    serve_line(local.endpoint)
    worlds = Worlds(local.endpoint, MAX_BYTES)
    orders, saving = session.orders, session.saving
    member = ClusterMember(session.training, worlds, executor, order_directory=orders, saving=saving)
    task, planned_places = session.revision, session.planned_places
    node = RavnestNode(
        local, member, capacity, session.lease_s, say, task=task, memory=memory, planned_places=planned_places
    )
    await node.run()
