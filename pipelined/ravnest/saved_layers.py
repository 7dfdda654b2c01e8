"""What nodes saved, read by any of them: each offers what its directory holds, and asks the others for what it lacks.

So nodes need no file system in common. Clusters begin with a step of which each stage is saved by some node that is
there (`RavnestView.begun`). A new place asks for its parameters one by one: its own directory first, then the nodes
that offer this step, and first the one that gave the last parameter, as a stage's parameters lie together. A reply has
the digest of what was read, and what was read was checked against the hashes saved with it. Imports torch.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from pipelined.aio.events import warn
from pipelined.directory import CutOff, LeaseLost
from pipelined.directory.registration import Registration
from pipelined.membership.node import Node
from pipelined.membership.view import NoLongerValid
from pipelined.ravnest.saving import Saving, fitting
from pipelined.ravnest.view import RavnestView
from pipelined.state.manifest import Layout, TransferError, describe
from pipelined.state.store import StoreError
from pipelined.state.versions import Version
from transports import Block, TransportError
from transports.rpc import Rejected, Request, Response

TOPIC = "saved parameter"


class SavedLayers:
    """One node's part.

    Args:
        node: this process; it replies to the others from now on.
        saving: where it saves; None: it saves nothing, and only asks.
    """

    def __init__(self, node: Node, view: RavnestView, saving: Saving | None):
        self._node, self._view, self._saving = node, view, saving
        self._damaged = set[Version]()
        self._registration: Registration | None = None
        node.endpoint.handle(TOPIC, self._reply)

    async def publish(self, registration: Registration) -> None:
        """List for the others what this node can read. Raises: as `Registration.put`."""
        self._registration = registration
        if self._saving is not None:
            saver = self._saving.saver()
            await saver.list_saved()
            saver.saved_stages = [each for each in saver.saved_stages if each.version not in self._damaged]
            await saver.publish(registration)

    async def load(self, version: Version, layout: Layout) -> Mapping[str, Block]:
        """The tensors of this layout at a version, whatever the stages were then.

        Raises:
            NoLongerValid: no node gives one of them now. UsageError: they were saved with other dtypes or fields.
        """
        holders, state = self._holders(version), dict[str, Block]()
        for name in dict.fromkeys(key.rpartition("/")[0] for key in layout):
            state |= await self._find(holders, version, name)
        return fitting(state, layout, version)

    def _holders(self, version: Version) -> list[str]:
        """The nodes that offer a version, in the order in which this one asks them: itself, then those after it."""
        own = self._node.name
        return sorted(self._view.holders(version), key=lambda name: (name < own, name))

    async def _find(self, holders: list[str], version: Version, name: str) -> Mapping[str, Block]:
        for holder in [*holders]:
            try:
                give = self._read if holder == self._node.name else partial(self._ask, holder)
                found = await give(version, name)
            except (TransportError, TransferError, NoLongerValid) as error:
                warn("saved parameter not given", node=holder, name=name, why=str(error) or f"{holder} left")
                continue
            if found:
                holders.remove(holder)
                holders.insert(0, holder)
                return found
        asked = ", ".join(holders) or "none offers it"
        raise NoLongerValid(f"no node gives {name} of step {version.step} ({asked})")

    async def _ask(self, holder: str, version: Version, name: str) -> Mapping[str, Block]:
        record = self._view.nodes.get(holder)
        if record is None:
            raise NoLongerValid
        async with self._view.while_holds(lambda: self._view.is_here(record)):
            response = await self._node.endpoint.request(record.address, TOPIC, note=[*version, name])
        return _received(response)

    async def _reply(self, request: Request) -> Response:
        version, name = _wanted(request.note)
        state = await self._read(version, name)
        return Response(tuple(state.values()), [[*state], describe(state).root])

    async def _read(self, version: Version, name: str) -> Mapping[str, Block]:
        """What is saved here. Raises Rejected: it is damaged; this version is not offered any more."""
        if self._saving is None:
            return {}
        try:
            return await self._saving.read(version, name)
        except StoreError as error:
            warn("save damaged", step=version.step, why=error)
            self._damaged.add(version)
            if self._registration is not None:
                with suppress(CutOff, LeaseLost):
                    await self.publish(self._registration)
            raise Rejected("damaged", step=version.step) from error


def _wanted(note: Any) -> tuple[Version, str]:
    if not isinstance(note, list) or [type(each) for each in note] != [int, str, str]:
        raise Rejected("malformed")
    return Version(note[0], note[1]), note[2]


def _received(response: Response) -> Mapping[str, Block]:
    """Raises TransferError: the reply is malformed, or not what its sender read."""
    note = response.note
    if not isinstance(note, list) or len(note) != 2 or not isinstance(note[0], list):
        raise TransferError(f"a reply without keys and a digest (got: {note!r:.80})")
    keys, root = note
    if not all(type(key) is str for key in keys) or len({*keys}) != len(response.blocks):
        raise TransferError(
            f"a reply with other keys than tensors (keys: {len(keys)}, tensors: {len(response.blocks)})"
        )
    state = dict(zip(keys, response.blocks, strict=True))
    if (found := describe(state).root) != root:
        raise TransferError(f"a reply with another digest (of what came: {found.hex()}, sent: {root!r:.80})")
    return state
