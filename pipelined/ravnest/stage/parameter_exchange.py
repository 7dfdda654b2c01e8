"""Nodes exchange parameters that they saved: each offers those in its directory, and requests the rest from the others.

So nodes need no file system in common. A generation begins with a step of which each stage is saved by some node that
is there (`RavnestView.saved_version`). A new place requests its parameters one by one: from its own directory first,
then from the nodes that offer this step, the sender of the last parameter first, as a stage's parameters lie together.
It comes in chunks, each with its hash; what is read is checked against the hashes saved with it. Imports torch.

The request is a note of four values. Those of `membership.messaging` begin with a version and an incarnation, which
nodes of earlier releases would reject here.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from pipelined.errors import UsageError, in_bytes
from pipelined.membership.connection import LocalMember
from pipelined.membership.directory import CutOff, LeaseLost
from pipelined.membership.registration import Registration
from pipelined.membership.view import NoLongerValid
from pipelined.process.reporting.events import warn
from pipelined.ravnest.records.generation import Generation
from pipelined.ravnest.records.view import RavnestView
from pipelined.ravnest.stage.saving import SaveReader, SaveSettings, group_by_parameter, select_tensors
from pipelined.state.stages.chunks import Download, Manifest, TransferError, chunk_of, describe
from pipelined.state.stages.store import StoreError
from pipelined.state.stages.versions import Version
from pipelined.state.tensor_specs import TensorSpecs
from pipelined.training.optimizer.state import VALUE
from transports import Block, TransportError
from transports.rpc import Rejected, Request, Response

TOPIC, AVERAGE = "saved parameter", "average"
CHUNK = 64 << 20
"""Bytes of a reply: for most parameters there is one, and the largest needs no more of a connection's memory."""
MOST_BYTES, EXTRA_BYTES = 16, 4096
"""What is accepted of a parameter: this many times its expected bytes, for other dtypes and more fields; and some."""


class ParameterExchange(SaveReader):
    """One node's part in the exchange.

    Args:
        local: this process; it replies to the others from now on.
        saving: where it saves; None: it saves nothing, and only asks.
    """

    def __init__(self, local: LocalMember, view: RavnestView, saving: SaveSettings | None):
        self._local, self._view, self._saving = local, view, saving
        self._saver = saving.saver() if saving else None
        self.average = dict[str, torch.Tensor]()
        self._generation = 0
        self._last_reply: tuple[tuple[Version, str], Mapping[str, Block], Manifest] | None = None
        local.endpoint.handle(TOPIC, self._reply)

    async def publish(self, registration: Registration) -> None:
        """List for the others what this node can read. Raises: as `Registration.put`."""
        if self._saver is not None:
            await self._saver.list_saved()
            await self._saver.publish(registration)

    async def load(self, version: Version, specs: TensorSpecs) -> AsyncIterator[Mapping[str, Block]]:
        """The tensors of these specs at a version, whatever the stages were then; of one parameter after another.

        Raises:
            NoLongerValid: no node gives one of them now. UsageError: they were saved with other dtypes or fields.
        """
        holders = self._holders(version)
        for name, part in group_by_parameter(specs).items():
            yield await self._find(holders, version, name, part)

    def keep(self, generation: Generation, values: Mapping[str, torch.Tensor]) -> None:
        """Give these values of the average after the last round of a generation to others that ask; none: no more."""
        self._generation = generation.number
        self.average = {name: tensor.detach() for name, tensor in values.items()}

    async def fetch_average(
        self, generation: Generation, layers: Sequence[Mapping[str, torch.Tensor]], blocks: dict[str, Block]
    ) -> None:
        """Get the average after the last round of a generation from the nodes that hold it, parameter by parameter.

        Args:
            layers: of the whole model, see `state_by_layer`.
            blocks: by name, those that this node has already; the others are added.
        Raises:
            NoLongerValid: no node gives one of them now.
        """
        version = Version(generation.number, AVERAGE)
        for layer, names in enumerate(layers):
            places = [
                place for place, stage_place in generation.all_places if stage_place.first <= layer < stage_place.end
            ]
            holders = [holder.name for place in places for holder in generation.holders(place)]
            for name, tensor in names.items():
                if name not in blocks:
                    key = f"{name}/{VALUE}"
                    dtype = str(tensor.dtype).removeprefix("torch.")
                    specs = {key: (dtype, tuple(tensor.shape))}
                    blocks[name] = (await self._find(holders, version, name, specs))[key]

    def _holders(self, version: Version) -> list[str]:
        """The nodes that offer a version, in the order in which this one asks them: itself, then those after it."""
        own_name = self._local.name
        return sorted(self._view.holders(version), key=lambda name: (name < own_name, name))

    async def _find(self, holders: list[str], version: Version, name: str, specs: TensorSpecs) -> Mapping[str, Block]:
        """The tensors of a parameter, from the first node that gives them; the next calls ask it first.

        Raises:
            NoLongerValid: no node gives them. UsageError: only others were saved, see `select_tensors`.
        """
        is_saved = version.lineage != AVERAGE
        other_layout = None
        for holder in [*holders]:
            try:
                read = self._read if holder == self._local.name else partial(self._ask, holder, specs)
                if not (state := await read(version, name)):
                    continue
                tensors = select_tensors(state, specs, version)
            except (TransportError, TransferError, NoLongerValid, UsageError) as error:
                # after the last step each node joins again
                if is_saved or isinstance(error, TransferError | UsageError):
                    warn("saved parameter not given", node=holder, name=name, why=str(error) or f"{holder} left")
                if is_saved and isinstance(error, UsageError):
                    other_layout = error
                continue
            holders.remove(holder)
            holders.insert(0, holder)
            return tensors
        if other_layout:
            raise other_layout
        holder_names = ", ".join(holders) or "none offers it"
        raise NoLongerValid(f"no node gives {name} of step {version.step} ({holder_names})")

    async def _ask(self, holder: str, specs: TensorSpecs, version: Version, name: str) -> Mapping[str, Block]:
        record = self._view.nodes.get(holder)
        if record is None:
            raise NoLongerValid
        async with self._view.while_holds(lambda: self._view.is_present(record)):
            manifest, parts = await self._request_chunk(record.address, version, name, 0)
            _require_within(manifest, name, specs)
            download = Download(manifest)
            for index in range(manifest.chunks):
                if index:
                    _, parts = await self._request_chunk(record.address, version, name, index)
                download.add(index, parts)
        return download.finish()

    async def _request_chunk(
        self, address: str, version: Version, name: str, index: int
    ) -> tuple[Manifest, Sequence[Block]]:
        """The manifest and one chunk of a parameter that another node saved. Raises TransferError: malformed."""
        blocks = (await self._local.endpoint.request(address, TOPIC, note=[*version, name, index])).blocks
        if not blocks:
            raise TransferError("a reply without a manifest")
        return Manifest.unpack(blocks[0].data), blocks[1:]

    async def _reply(self, request: Request) -> Response:
        version, name, index = _parse_note(request.note)
        state, manifest = await self._describe(version, name)
        is_last = index + 1 >= manifest.chunks
        self._last_reply = None if is_last else ((version, name), state, manifest)
        try:
            return Response((Block.of(manifest.pack()), *(chunk_of(state, manifest, index) if state else ())))
        except TransferError as error:
            raise Rejected("malformed") from error

    async def _describe(self, version: Version, name: str) -> tuple[Mapping[str, Block], Manifest]:
        """What is saved here, in chunks; it is read once for requests that follow one another."""
        if self._last_reply is not None and self._last_reply[0] == (version, name):
            return self._last_reply[1:]
        state = await self._read(version, name)
        return state, await asyncio.to_thread(describe, state, CHUNK)

    async def _read(self, version: Version, name: str) -> Mapping[str, Block]:
        """What is here of a parameter. Raises Rejected: it is damaged; this version is not offered any more."""
        if version == (self._generation, AVERAGE):
            tensor = self.average.get(name)
            return {} if tensor is None else {f"{name}/{VALUE}": Block.of(tensor.cpu())}
        if self._saving is None or self._saver is None:
            return {}
        try:
            return await self._saving.read(version, name)
        except StoreError as error:
            with suppress(CutOff, LeaseLost):
                await self._saver.note_unread(version, error)
            raise Rejected("damaged", step=version.step) from error


def _require_within(manifest: Manifest, name: str, specs: TensorSpecs) -> None:
    """Raise TransferError before memory is allocated that the expected tensors of a parameter cannot need."""
    limit = MOST_BYTES * Manifest(specs, b"").nbytes + EXTRA_BYTES
    if manifest.nbytes > limit or any(key.rpartition("/")[0] != name for key in manifest.names):
        fact = f"size: {in_bytes(manifest.nbytes)}, at most {in_bytes(limit)}, sent: {manifest.names!r:.80}"
        raise TransferError(f"not this parameter ({fact})")


def _parse_note(note: Any) -> tuple[Version, str, int]:
    if not isinstance(note, list) or [type(value) for value in note] != [int, str, str, int]:
        raise Rejected("malformed")
    return Version(note[0], note[1]), note[2], note[3]
