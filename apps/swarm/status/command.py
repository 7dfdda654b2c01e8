"""`python -m apps.swarm status`: show a swarm once, or continuously."""

from apps.common.status import EVERY_S, show
from apps.common.web import Rendering
from apps.swarm.config import read_goal
from apps.swarm.flags import Status
from apps.swarm.status.prometheus import metrics
from apps.swarm.status.table import table
from pipelined.membership.joining import connected
from pipelined.swarm.status.reader import StatusReader
from pipelined.swarm.status.status import Selection, SwarmStatus

SWARM = Rendering[SwarmStatus]("swarm", table, metrics)


async def status(flags: Status) -> None:
    """Print the state of a swarm; with --watch or --web until it is interrupted."""
    selection = Selection(flags.members, flags.stage)
    async with connected(flags.address.url, flags.address.listen) as (endpoint, directory):
        reader = StatusReader(endpoint, directory, read_goal, selection)
        await show(flags.shown, reader.repeat(EVERY_S), SWARM)
