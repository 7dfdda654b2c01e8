"""The tensors of the whole model on rank 0: one after another for a writer, or all together."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from torch import Tensor

from collectives.objects import gather_objects
from pipelined.actors.actor import Actor
from pipelined.actors.agree import agree
from pipelined.errors import UsageError
from pipelined.state.tensor_specs import TensorSpecs
from pipelined.training.rank_trainer import RankTrainer
from pipelined.training.stages.parameters import LocalParameters
from pipelined.training.stages.whole_tensors import whole_of

NamedTensor = tuple[str, Tensor]


async def gather_state(trainer: RankTrainer) -> dict[str, Tensor] | None:
    """Every parameter and persistent buffer by name, on the host of rank 0; None on other ranks.

    All ranks call this between two steps. A tensor comes from its first holder, with its newest value.

    Cost: as of `write_state`; and rank 0 holds the whole model in memory.
    """
    own_names = set(trainer.local.state_names)
    state = dict[str, Tensor]()

    def keep(_: TensorSpecs, tensors: Iterator[NamedTensor]) -> None:
        state.update((name, tensor.clone() if name in own_names else tensor) for name, tensor in tensors)

    await write_state(trainer, keep)
    return None if trainer.context.actor.rank else state


async def write_parameters(trainer: RankTrainer, write: Callable[[Iterator[NamedTensor]], None]) -> None:
    """Give a writer on rank 0 every parameter of the model, without its buffers; else as `write_state`."""
    names = set(trainer.local.names)
    # `filter` keeps no tensor while the next one comes
    await write_state(trainer, lambda _, tensors: write(filter(lambda pair: pair[0] in names, tensors)))


async def write_state(trainer: RankTrainer, write: Callable[[TensorSpecs, Iterator[NamedTensor]], None]) -> None:
    """Give a writer on rank 0 every parameter and persistent buffer of the model, one after another.

    All ranks call this between two steps.

    Args:
        write: takes the dtypes and shapes of all, and the tensors; runs in a thread of rank 0.
    Raises:
        AgreedError: on every rank: the writer raised a UsageError or an OSError.
    Cost: one message a tensor to rank 0. Beside what they hold, rank 0 and the first member of each team have one
        whole tensor at a time.
    """
    actor = trainer.context.actor
    loop = asyncio.get_running_loop()

    async def write_on_first_rank() -> None:
        specs_by_rank = await gather_objects(actor.transport, "layouts", _specs(trainer.local))
        arriving = _receive(actor, trainer.local, specs_by_rank)

        async def take_next() -> NamedTensor | None:
            return await anext(arriving, None)

        def tensors() -> Iterator[NamedTensor]:
            while named_tensor := asyncio.run_coroutine_threadsafe(take_next(), loop).result():
                yield named_tensor
                del named_tensor  # before the next one comes

        try:
            if not actor.rank:
                specs = {name: spec for rank_specs in specs_by_rank for name, spec in rank_specs.items()}
                await asyncio.to_thread(write, specs, tensors())
        except (UsageError, OSError):
            await _drain(arriving)  # the other ranks send on, and learn of the error afterwards
            raise
        await _drain(arriving)

    async with trainer.with_last_update():
        await agree(actor.transport, "exported", write_on_first_rank())


def _specs(local: LocalParameters) -> TensorSpecs:
    """Dtype and shape of each whole tensor that this rank sends to rank 0, by name, in the order of sending."""
    specs = {}
    for name in local.state_names if not local.team.member else ():
        tensor = local.tensors[name]
        part = local.team.part(name)
        shape = tensor.shape if part is None else part.whole
        specs[name] = str(tensor.dtype).removeprefix("torch."), tuple(shape)
    return specs


async def _drain(arriving: AsyncIterator[NamedTensor]) -> None:
    async for _ in arriving:
        pass


async def _receive(
    actor: Actor, local: LocalParameters, specs_by_rank: Sequence[TensorSpecs]
) -> AsyncIterator[NamedTensor]:
    """Yield every tensor of the model on rank 0, first those of which it is the first holder, which change with a step.

    The other ranks send theirs, and yield nothing.

    Args:
        specs_by_rank: on rank 0, what each rank sends.
    """
    for name in local.state_names:
        tensor = await whole_of(actor.transport, local, name)
        if tensor is not None and actor.rank:
            await actor.transport.send(0, ("state", name), tensor)  # it may change afterwards
        elif tensor is not None:
            yield name, tensor
        del tensor  # before the next one is put together
    for rank, specs in enumerate(specs_by_rank[1:], 1):
        for name in specs:
            yield name, (await actor.receive(rank, ("state", name))).blocks[0].torch()
