"""The tensors of the whole model on rank 0: one after another for a writer, or all together."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

from torch import Tensor

from pipelined.actors.actor import Actor
from pipelined.actors.agree import agree
from pipelined.errors import UsageError
from pipelined.training.parameters import LocalParameters
from pipelined.training.teams.gather import whole_of
from pipelined.training.trainer import RankTrainer

Named = tuple[str, Tensor]


async def gather_state(trainer: RankTrainer) -> dict[str, Tensor] | None:
    """Every parameter and persistent buffer by name, on the host of rank 0; None on other ranks.

    All ranks call this between two steps. A tensor comes from its first holder, with its newest value.

    Cost: one message a tensor to rank 0, which holds the whole model in memory.
    """
    own = set(trainer.local.state_names)
    async with trainer.newest():
        each = _each(trainer.context.actor, trainer.local)
        every = {name: tensor.clone() if name in own else tensor async for name, tensor in each}
    return None if trainer.context.actor.rank else every


async def write_parameters(trainer: RankTrainer, write: Callable[[Iterator[Named]], None]) -> None:
    """Give a writer on rank 0 every parameter of the model, one after another; all ranks call this between two steps.

    Args:
        write: runs in a thread of rank 0.
    Raises:
        AgreedError: on every rank: the writer raised a UsageError or an OSError.
    Cost: one message a parameter to rank 0. Beside what they hold, rank 0 and the first member of each team have one
        whole parameter at a time.
    """
    actor, loop, names = trainer.context.actor, asyncio.get_running_loop(), set(trainer.local.names)

    async def written() -> None:
        each = _each(actor, trainer.local)

        async def following() -> Named | None:
            return await anext(each, None)

        def parameters() -> Iterator[Named]:
            while named := asyncio.run_coroutine_threadsafe(following(), loop).result():
                if named[0] in names:
                    yield named
                del named  # before the next one comes

        try:
            if not actor.rank:
                await asyncio.to_thread(write, parameters())
        except (UsageError, OSError):
            await _drain(each)  # the other ranks send on, and learn of the error afterwards
            raise
        await _drain(each)

    async with trainer.newest():
        await agree(actor.transport, "exported", written())


async def _drain(each: AsyncIterator[Named]) -> None:
    async for _ in each:
        pass


async def _each(actor: Actor, local: LocalParameters) -> AsyncIterator[Named]:
    """On rank 0 every tensor of the model, first those of which it is the first holder, which change with a step.

    The other ranks send theirs, and have none here.
    """
    if actor.rank:
        actor.tell(0, ("state", "names"), note=[] if local.team.member else local.state_names)
    for name in local.state_names:
        tensor = await whole_of(actor.transport, local, name)
        if tensor is not None and actor.rank:
            await actor.transport.send(0, ("state", name), tensor)  # it may change afterwards
        elif tensor is not None:
            yield name, tensor
        del tensor  # before the next one is put together
    for rank in range(1, actor.transport.world_size) if not actor.rank else ():
        for name in (await actor.receive(rank, ("state", "names"))).note:
            yield name, (await actor.receive(rank, ("state", name))).blocks[0].torch()
