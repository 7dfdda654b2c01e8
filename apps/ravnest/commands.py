"""The processes of Ravnest, each from its flags to its end: `serve`, `train`, `export` and `replay`."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from apps.common.arguments import TextFlags
from apps.common.trackers import Tracker, append
from apps.lm.data.text import Text, read_text
from apps.ravnest.code import own_code, require_own_code
from apps.ravnest.config import RavnestConfig, RavnestTask
from apps.ravnest.digits import DIGITS, DIGITS_MODEL, Digits, refuse_data
from apps.ravnest.flag_groups import FormingFlags
from apps.ravnest.flags import Export, Replay, Serve, Train
from apps.ravnest.plan import layer_sizes
from pipelined.actors.host_memory import PeakMemory
from pipelined.aio.progress import Say, reported_wait
from pipelined.errors import UsageError
from pipelined.measurement.codec import ratio_of
from pipelined.measurement.line import serve_line
from pipelined.membership.addresses import described
from pipelined.membership.connection import connected, member_node
from pipelined.membership.task_record import RUN, publish_task, read_task
from pipelined.ravnest.forming import ClusterFormer
from pipelined.ravnest.orders import OrderDirectory, read_orders
from pipelined.ravnest.planning.backups import STEPS_APART
from pipelined.ravnest.planning.plan import PoolRequest
from pipelined.ravnest.planning.pool import Newcomer
from pipelined.ravnest.planning.stage import StageRules
from pipelined.ravnest.records import UPDATES, ClusterProgress
from pipelined.state.versions import common_step, saved_steps
from pipelined.training.step_report import StepReport

if TYPE_CHECKING:
    from pipelined.ravnest.saving import Saving

MAX_BYTES = 1 << 30
"""The largest message that a node takes from another."""


async def serve(flags: Serve, say: Say) -> None:
    """Serve as a node until a stop request; a cluster that it is in ends then."""
    from pipelined.actors.device import check_device
    from pipelined.actors.executor import TorchExecutor

    await asyncio.to_thread(check_device, flags.device)
    url = flags.address.url
    async with connected(url, flags.address.listen) as (endpoint, directory):
        task = RavnestTask.unpack(await read_task(directory, url, say))
        require_own_code(task, await asyncio.to_thread(own_code))
        data = await asyncio.to_thread(read_data, task.subject, flags.text)
        from apps.ravnest.offer import offer
        from apps.ravnest.training import training_of
        from pipelined.ravnest.cluster import ClusterMember
        from pipelined.ravnest.node import RavnestNode
        from transports.rpc.world import Worlds

        training = training_of(task, data)
        async with member_node(url, endpoint, flags.address.name, task.subject.lease) as node:
            executor = TorchExecutor(flags.device, node.clock)
            try:
                orders = OrderDirectory(flags.orders, task.pack().decode()) if flags.orders else None
                run = (await directory.read(RUN)).entries[RUN].value.decode()
                saving = await asyncio.to_thread(saving_of, flags, task, run) if flags.checkpoint else None
                member = ClusterMember(training, Worlds(endpoint, MAX_BYTES), executor, orders=orders, saving=saving)
                serve_line(endpoint)
                capacity, words = await offer(flags, task, training, node, executor)
                say(f"{node.name}: node at {endpoint.address}, {words}")
                await RavnestNode(node, member, capacity, task.subject.lease, say, memory=PeakMemory()).run()
            finally:
                executor.close()


def read_data(config: RavnestConfig, flags: TextFlags) -> Text | Digits:
    """What is trained on.

    Raises:
        UsageError: it cannot be read, or there are files for a model that learns from none.
    """
    refuse_data(config.preset, flags.data)
    return Digits.read() if config.preset == DIGITS else read_text(flags.data, flags.tokenizer)


def saving_of(flags: Serve, task: RavnestTask, run: str) -> "Saving":
    """Where a node with --checkpoint saves.

    Args:
        run: its unique name.
    Raises:
        UsageError: stages of another run are there.
    """
    from pipelined.ravnest.saving import Saving
    from pipelined.state.store import DiskStore, saved_stages

    assert flags.checkpoint is not None
    found = saved_stages(flags.checkpoint)
    if any(saved.version.run != run for saved in found):
        fact = f"{flags.checkpoint} holds stages of another run ({saved_steps(found)})"
        raise UsageError(f"{fact}; give --checkpoint another directory")
    identity = task.subject.model(task.vocabulary).identity()
    store = DiskStore(flags.checkpoint, identity, text=task.text, optimizer=task.subject.optimizer)
    return Saving(store, flags.save_every, run)


async def train(flags: Train, say: Say) -> None:
    """Form clusters, and others when they are lost, and show their steps to the last. Raises UnequalClusters."""
    subject, url = flags.subject, flags.address.url
    data = await asyncio.to_thread(read_data, subject, flags.text)
    symbols = data.tokenizer.vocab_size if isinstance(data, Text) else DIGITS_MODEL.classes
    task = RavnestTask(subject, symbols, data.digest, await asyncio.to_thread(own_code))
    flags.final.check_model(subject.model(symbols))
    on_step = show_steps(say, flags.metrics)
    run = await asyncio.to_thread(resumed_run, flags.checkpoint, task) if flags.resume and flags.checkpoint else ""
    async with connected(url, flags.address.listen) as (endpoint, directory):
        async with reported_wait(described(url), say):
            await publish_task(directory, task, run)
            require_own_code(RavnestTask.unpack(await read_task(directory, url, say)), task.code)
        async with member_node(url, endpoint, flags.address.name, subject.lease) as node:
            await ClusterFormer(
                node,
                flags.nodes,
                pool_request(task, flags.forming, flags.later.newcomers),
                on_step,
                say,
                resume=flags.resume,
            ).run()
            if not flags.final.is_empty:
                from apps.ravnest.final import write_average

                await write_average(node, task, data, flags.final, say)


def pool_request(task: RavnestTask, forming: FormingFlags, newcomers: Newcomer | None = None) -> PoolRequest:
    """What to plan for this training, without the pool."""
    subject = task.subject
    return PoolRequest(
        pool=(),
        layers=tuple(layer_sizes(subject.model(task.vocabulary), subject.microbatch, subject.seq, subject.dtype)),
        clusters=forming.clusters,
        balance=forming.balance,
        objective=forming.objective,
        rules=StageRules(
            subject.weights,
            ahead=forming.ahead,
            blocking=subject.average == "blocking",
            behind=STEPS_APART * subject.microbatches,
            coded=ratio_of(subject.compress, subject.dtype),
        ),
        backups=forming.backups,
        newcomers=newcomers,
    )


def show_steps(
    say: Say, metrics: Path | None, trackers: Sequence[Tracker] = ()
) -> Callable[[int, ClusterProgress], None]:
    """What shows each step of a cluster: a line, a JSON object in this file, and a row for each tracker."""

    def on_step(cluster: int, progress: ClusterProgress) -> None:
        delays = " ".join(f"{delay:.1f}" for delay in progress.staleness)
        say(f"step {progress.step}: loss {progress.loss:.4f}, cluster {cluster}, delays {delays}")
        row = {"step": progress.step, "loss": progress.loss, "cluster": cluster, "staleness": progress.staleness}
        row["step_s"] = progress.seconds
        if metrics is not None:
            append(metrics, row)
        for tracker in trackers:
            tracker.write(row)

    return on_step


def resumed_run(directory: Path, task: RavnestTask) -> str:
    """The name of the run that saved the latest step in a directory: that of a step with all stages, if there is one.

    Raises:
        UsageError: nothing is saved there, or it is of a swarm, or of another model, text or optimizer.
    """
    from pipelined.state.saved import other_optimizer, other_text, saved_of
    from pipelined.state.store import fields_of

    saved = saved_of(directory, task.subject.model(task.vocabulary).identity())
    at = common_step(saved) or max(saved, default=None)
    if at is None:
        fact = f"no node saved in {directory}"
        raise UsageError(f"{fact}; leave --resume out, or name the --checkpoint of a node")
    if UPDATES not in fields_of(directory, at):
        fact = f"{directory} holds stages of a swarm (the latest: step {at.step})"
        raise UsageError(f"{fact}; leave --resume out, or name the --checkpoint of a node")
    if text := other_text(directory, saved, task.text):
        raise UsageError(f"{text}; give the --data and --tokenizer of that run")
    if optimizer := other_optimizer(directory, saved, task.subject.optimizer):
        raise UsageError(f"{optimizer}; give the --optimizer of that run, or begin anew without --resume")
    return at.version.run


async def export(flags: Export, say: Say) -> None:
    """Write what was saved.

    Raises:
        UsageError: another tokenizer or an unknown model, or the directory holds something else. CheckpointError: no
            whole step.
    """
    from apps.lm.export import export_whole
    from pipelined.state.store import find_whole

    whole = await asyncio.to_thread(find_whole, flags.checkpoint)
    if whole.identity.get("model") != DIGITS:
        return await export_whole(whole, flags.output, say)
    from apps.ravnest.digits_training import export_digits

    say(f"step {whole.at.step}, as all {whole.at.stages} stages saved it")
    await asyncio.to_thread(export_digits, whole.values, flags.output.to, say)


async def replay(flags: Replay, say: Say) -> None:
    """Train again in the recorded orders, and print the digest of the average.

    Raises:
        UsageError: no orders of one whole run, or another text. UnequalClusters.
    """
    orders = read_orders(flags.orders)
    tasks = [RavnestTask.unpack(each.task.encode()) for each in orders]
    from apps.ravnest.training import training_of
    from pipelined.actors.device import check_device
    from pipelined.actors.executor import TorchExecutor
    from pipelined.aio.clock import RealClock
    from pipelined.ravnest import replay as again

    await asyncio.to_thread(check_device, flags.device)
    data = await asyncio.to_thread(read_data, tasks[-1].subject, flags.text)
    runs = [(training_of(task, data), each) for task, each in zip(tasks, orders, strict=True)]
    executor = TorchExecutor(flags.device, RealClock())

    def on_step(cluster: int, report: StepReport) -> None:
        say(f"step {report.step}: loss {report.loss:.4f}, cluster {cluster}")

    try:
        say(f"average {await again.replay(runs, executor, on_step)}")
    finally:
        executor.close()
