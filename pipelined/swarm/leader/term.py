"""One trainer's term as leader: its number, the names of its rounds, and the writes that only the leader may make.

A term's number is the revision of the leader's key. Every write expects the key at this revision, so a former leader
that has not yet seen its replacement changes nothing.
"""

from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from pipelined.membership.directory import Conflict, CutOff
from pipelined.membership.record import Record
from pipelined.membership.view import NoLongerValid
from pipelined.swarm.protocol.rounds import RoundName
from pipelined.swarm.records.members import LEADER
from pipelined.swarm.records.view import SwarmView

T = TypeVar("T")


class LeadershipLost(Exception):
    """Another trainer leads, or this trainer gave up leadership."""


class Term:
    """The present term.

    Attributes:
        number: of the term; 0 before the first.
    """

    def __init__(self, view: SwarmView):
        self._view = view
        self.number, self._rounds = 0, 0

    def next_round(self) -> RoundName:
        """The name of the next round, greater than all earlier names under any leader."""
        self._rounds += 1
        return RoundName(self.number, self._rounds)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work that only the leader does.

        Raises:
            LeadershipLost: another trainer leads; the work is cancelled first.
        """
        try:
            async with self._view.while_holds(lambda: self._view.leader_revision == self.number):
                return await work
        except NoLongerValid as error:
            raise LeadershipLost("the directory names another leader, or none") from error
        finally:
            work.close()  # if it was never started

    async def write(self, key: str, record: Record, revision: int) -> None:
        """Write a record under a key that is at this revision. Raises as `put`."""
        await self.put(key, {key: record.pack()}, revision)

    async def put(self, key: str, entries: Mapping[str, bytes], revision: int) -> None:
        """Put entries while the key is at this revision; retries while the directory is cut off.

        Raises:
            LeadershipLost: another leader wrote the key, or another trainer leads.
        """
        conflict = await self._view.write_unless_changed({key: revision, LEADER: self.number}, entries)
        if conflict is not None:
            entry = conflict.entries.get(key)
            if entry is None or entry.value != entries[key]:  # else an attempt without a reply had succeeded
                raise LeadershipLost(f"another leader wrote {key!r}, or leads") from conflict


async def resign(view: SwarmView, term: int) -> None:
    """Delete the leader's key of this term, as another trainer may be able to lead.

    Does nothing if the key is of another term, or the directory is cut off.
    """
    with suppress(Conflict, CutOff):
        await view.directory.transact({LEADER: term}, {}, [LEADER])
