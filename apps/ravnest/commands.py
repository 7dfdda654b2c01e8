"""The processes of Ravnest, each from its flags to its end: `serve`, `train`, `export` and `replay`."""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from apps.ravnest.code import own_code, require_own_code
from apps.ravnest.families.registry import family_saved_as, find_family, read_data
from apps.ravnest.flags.commands import Export, Replay, Serve, Train
from apps.ravnest.flags.config import RavnestTask
from apps.ravnest.node_setup import planned_places, resumed_run, saving_of, show_steps
from apps.ravnest.plan import pool_request
from pipelined.actors.device.host_memory import PeakMemory
from pipelined.membership.addresses import described
from pipelined.membership.connection import connected, local_member
from pipelined.membership.task_record import RUN, publish_task, read_task
from pipelined.process.reporting.progress import Say, reported_wait
from pipelined.ravnest.forming.cluster_former import ClusterFormer
from pipelined.ravnest.records.generation import GENERATION
from pipelined.ravnest.stage.orders import OrderDirectory, read_orders
from pipelined.training.segments.step_report import StepReport

if TYPE_CHECKING:
    from pipelined.ravnest.node_process import NodeSession

OUT_OF_MEMORY = (
    "let `train` take a smaller --microbatch or --ahead, or --weights newest, or let this node offer less memory "
    "(`serve --ram`, or the column ram of `local --pool`), so that it gets fewer layers"
)
"""What to do where a node has no memory left."""


async def serve(flags: Serve, say: Say) -> None:
    """Serve as a node until a stop request; a cluster that it is in ends then."""
    from pipelined.actors.device.torch_devices import check_device
    from pipelined.ravnest.node.node import TaskReplaced

    await asyncio.to_thread(check_device, flags.device)
    while True:
        try:
            await _serve(flags, say)
        except TaskReplaced:
            say("what is trained was replaced before any cluster was formed; the node joins again")


async def _serve(flags: Serve, say: Say) -> None:
    """Serve as a node of what the directory says is trained. Raises TaskReplaced."""
    url = flags.address.url
    async with connected(url, flags.address.listen) as (endpoint, directory):
        record = await read_task(directory, url, say)
        task = RavnestTask.unpack(record.value)
        run = (await directory.read(RUN)).entries[RUN].value.decode()
        session = await asyncio.to_thread(_node_session, flags, task, record.revision, run)
        from apps.ravnest.offer import offer
        from pipelined.actors.device.executor import TorchExecutor
        from pipelined.ravnest.node_process import run_node

        async with local_member(url, endpoint, flags.address.name, session.lease_s) as local:
            executor = TorchExecutor(flags.device, local.clock)
            try:
                executor.configure(remedy=OUT_OF_MEMORY)
                capacity, description = await offer(flags, task, session.training, local, executor)
                say(f"{local.name}: node at {endpoint.address}, {description}")
                await run_node(local, session, executor, capacity, say, memory=PeakMemory())
            finally:
                executor.close()


def _node_session(flags: Serve, task: RavnestTask, revision: int, run: str) -> "NodeSession":
    """What a node with these flags takes part in.

    Args:
        revision: of the directory's record of the task.
        run: its unique name.
    Raises:
        UsageError: another release or another text is trained, or other stages are saved at --checkpoint.
    """
    require_own_code(task, own_code())
    data = read_data(task.settings.preset, flags.text)
    from apps.ravnest.task_training import training_of
    from pipelined.ravnest.node_process import NodeSession

    return NodeSession(
        training=training_of(task, data),
        revision=revision,
        planned_places=planned_places(task, saves=flags.checkpoint is not None),
        lease_s=task.settings.lease,
        saving=saving_of(flags.checkpoint, flags.save_every, task, run) if flags.checkpoint else None,
        orders=OrderDirectory(flags.orders, task.pack().decode()) if flags.orders else None,
    )


async def train(flags: Train, say: Say) -> None:
    """Form clusters, and others when they are lost, and show their steps to the last. Raises UnequalClusters."""
    settings, url = flags.settings, flags.address.url
    family = find_family(settings.preset)
    data = await asyncio.to_thread(read_data, settings.preset, flags.text)
    symbols = family.symbols(data)
    task = RavnestTask(settings, symbols, data.digest, await asyncio.to_thread(own_code))
    family.check(export=flags.final.export)
    on_step = show_steps(say, flags.metrics)
    run = await asyncio.to_thread(resumed_run, flags.checkpoint, task) if flags.resume and flags.checkpoint else ""
    async with connected(url, flags.address.listen) as (endpoint, directory):
        async with reported_wait(described(url), say):
            record = await publish_task(directory, task, run, begun_key=GENERATION)
        require_own_code(RavnestTask.unpack(record.value), task.code)
        async with local_member(url, endpoint, flags.address.name, settings.lease) as local:
            request = pool_request(settings, settings.model(symbols), flags.forming)
            request = replace(request, newcomers=flags.later.newcomers)
            former = ClusterFormer(local, flags.nodes, request, on_step, say, resume=flags.resume, task=record.revision)
            await former.run()
            if not flags.final.is_empty:
                from apps.ravnest.final import write_average

                await write_average(local, task, data, flags.final, say)


async def export(flags: Export, say: Say) -> None:
    """Write what was saved.

    Raises:
        UsageError: another tokenizer, an unknown model, or other files in the folder. CheckpointError: no whole step.
    """
    from pipelined.state.stages.whole_model import find_whole_model

    model = await asyncio.to_thread(find_whole_model, flags.checkpoint)
    await family_saved_as(model.identity.get("model")).export(model, flags.output, say)


async def replay(flags: Replay, say: Say) -> None:
    """Train again in the recorded orders, and print the digest of the average.

    Raises:
        UsageError: no orders of one whole run, or another text. UnequalClusters.
    """
    orders = read_orders(flags.orders)
    tasks = [RavnestTask.unpack(order.task.encode()) for order in orders]
    from apps.ravnest.task_training import training_of
    from pipelined.actors.device.executor import TorchExecutor
    from pipelined.actors.device.torch_devices import check_device
    from pipelined.aio.clock import RealClock
    from pipelined.ravnest.replay import replay as replay_runs

    await asyncio.to_thread(check_device, flags.device)
    data = await asyncio.to_thread(read_data, tasks[-1].settings.preset, flags.text)
    runs = [(training_of(task, data), order) for task, order in zip(tasks, orders, strict=True)]
    executor = TorchExecutor(flags.device, RealClock())

    def on_step(cluster: int, report: StepReport) -> None:
        say(f"step {report.step}: loss {report.loss:.4f}, cluster {cluster}")

    try:
        say(f"average {await replay_runs(runs, executor, on_step)}")
    finally:
        executor.close()
