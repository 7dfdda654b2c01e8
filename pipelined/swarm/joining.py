"""Coming to where a stage is: its state from whoever serves it, then the steps taken meanwhile.

The one rule: what is loaded has the hashes of what a peer of the stage holds, and the steps after it are taken with the
very totals that the stage took them with, so a joiner equals its donors to the bit. A donor that is lost is replaced by
another: what was fetched is kept where the other has the same state.
"""

import asyncio

from pipelined.device import Device
from pipelined.nursery import Nursery
from pipelined.swarm.asking import Asking
from pipelined.swarm.membership import Ended, Roster
from pipelined.swarm.records import Peer
from pipelined.swarm.stage import SwarmStage
from pipelined.swarm.transfer import Download, TransferError, expect, layout_of
from transports.endpoints import Refusal

UNDER_WAY = 4  # chunks asked for at once


class Joining:
    """One peer on its way to a stage's state.

    Args:
        index: which stage.
        step: the step at which `stage` is now, if it is of this swarm: 0 as built; None: nobody knows.
    """

    def __init__(self, stage: SwarmStage, index: int, step: int | None, roster: Roster, asking: Asking, device: Device):
        self.step = step
        self._stage, self._index, self._roster, self._asking, self._device = stage, index, roster, asking, device
        self._download: Download | None = None
        self._failed = set[int]()

    async def arrive(self) -> int:
        """Fetch what is missing until this stage is at the step that stands; returns it.

        Waits while nobody serves the stage.
        """
        while self.step != self._roster.head.step:
            donor = self._donor()
            if donor is None:
                await self._roster.next_change()
                continue
            try:
                if not await self._caught_up(donor):
                    await self._fetch(donor)
            except (Ended, Refusal, TransferError):
                self._failed.add(self._roster.announced[donor.name])
        return self.step

    def _donor(self) -> Peer | None:
        """Somebody who has the state; who failed is asked again once all have, or when it announces itself again."""
        serving = [peer for peer in self._roster.holding(self._index)]
        fresh = [peer for peer in serving if self._roster.announced[peer.name] not in self._failed]
        if serving and not fresh:
            self._failed.clear()
            return None
        return fresh[0] if fresh else None

    async def _caught_up(self, donor: Peer) -> bool:
        """Take the steps that are missing, if the donor has their totals."""
        try:
            while self.step is not None and self.step < self._roster.head.step:
                answer = await self._asking.ask(donor, "total", step=self.step)
                await self._take(answer.blocks[0].numpy(), float(answer.note["scale"]))
        except Refusal as refusal:
            if refusal.reason != "not kept":
                raise
        return self.step == self._roster.head.step

    async def _take(self, total, scale: float) -> None:
        if total.dtype != self._stage.sums.dtype or total.shape != self._stage.sums.shape:
            raise TransferError(f"a total of another stage (shape: {total.shape}, here: {self._stage.sums.shape})")

        def take() -> None:
            self._stage.apply(self.step, total, scale)
            self.step += 1

        await self._device.run("step", take)

    async def _fetch(self, donor: Peer) -> None:
        answer = await self._asking.ask(donor, "manifest")
        manifest = expect(layout_of(self._stage.state()), answer.blocks[0], answer.note["root"])
        if self._download is None or self._download.manifest.root != manifest.root:
            self._download = Download(manifest)
        limit = asyncio.Semaphore(UNDER_WAY)
        async with Nursery() as tasks:
            for index in list(self._download.missing):
                tasks.create_task(self._fetch_chunk(donor, index, limit))
        state, step = self._download.finish(), int(answer.note["step"])

        def load() -> None:
            self.step = None
            self._stage.load(state)
            self._stage.clear()
            self.step = step

        await self._device.run("load", load)

    async def _fetch_chunk(self, donor: Peer, index: int, limit: asyncio.Semaphore) -> None:
        async with limit:
            root = self._download.manifest.root
            answer = await self._asking.ask(donor, "chunk", root=root, index=index)
            self._download.add(index, answer.blocks)
