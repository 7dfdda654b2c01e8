"""The log of a peer on its terminal: a line whenever its state changes.

It shows what the directory says of the peer, and the reason when the peer cannot continue.
"""

from collections.abc import Callable
from dataclasses import dataclass

from apps.swarm.waiting import unreadable_head
from pipelined.membership.records import Peer, Phase
from pipelined.swarm.records import HEAD
from pipelined.swarm.view import SwarmView


@dataclass(frozen=True)
class PeerLog:
    """The log of one peer.

    Args:
        name, address: of the peer.
        trouble: why the last fetch of state failed; "": it did not.
    """

    name: str
    address: str
    view: SwarmView
    trouble: Callable[[], str]
    say: Callable[[str], None]

    async def follow(self) -> None:
        """Log every change, until cancelled."""
        await self.view.wait_for(lambda: self.view.revision > 0 or self.view.cut_off)
        last, leaves = "", False
        while True:
            mine = self.view.peers.get(self.name)
            leaves = mine.phase == Phase.LEAVING if mine else leaves
            now = self._account(mine) if mine or not leaves else last
            if now != last:
                self.say(f"{self.name}: {now}")
            last = now
            await self.view.next_change()

    def _account(self, mine: Peer | None) -> str:
        if self.view.cut_off:
            return "the directory does not reply; this peer serves passes, but applies no step until it replies"
        if self.view.head is None and HEAD in self.view.unreadable:
            return unreadable_head(self.view.unreadable[HEAD])
        if self.view.head is None:
            return "waits for a trainer that begins"
        if mine and mine.address != self.address:
            return f"waits for its name, which another process has (at {mine.address}), until that one's lease ends"
        if mine is None and self.view.leader is None:
            return "waits for a leader, which assigns it a stage"
        return self._of_stage(mine) if mine else "is not a member; requests membership"

    def _of_stage(self, mine: Peer) -> str:
        if mine.phase != Phase.JOINING:
            does = {
                Phase.SERVING: "serves",
                Phase.DRAINING: "serves until another has its state, or its notice is up",
                Phase.LEAVING: "hands over, and leaves",
            }
            return f"stage {mine.stage}: {does[Phase(mine.phase)]}"
        if not self.view.holding(mine.stage) and self.view.head.step:
            return f"stage {mine.stage}: waits for a peer that has its state, or a checkpoint"
        trouble = self.trouble()
        return f"stage {mine.stage}: fetches its state" + (f" (the last try failed: {trouble})" if trouble else "")
