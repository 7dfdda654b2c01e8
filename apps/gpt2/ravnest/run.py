"""One rank of `--schedule ravnest`: a node; rank 0 also has the directory, forms clusters and exports.

Over the job's transport the ranks exchange the directory's address, and the end of training. All else they do as
the nodes of `python -m apps.ravnest`.
"""

import asyncio
import secrets
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from apps.common.lm.data.text import Text
from apps.common.lm.export import FinalOutput
from apps.common.lm.models.gpt2 import UntiedGPT2
from apps.common.lm.weights import Weights
from apps.common.run.trackers import opened_trackers
from apps.gpt2.config import GPT2Flags
from apps.gpt2.rank_directory import directory_of_rank0
from apps.gpt2.ravnest.job import RavnestJob
from apps.ravnest.code import own_code
from apps.ravnest.config import RavnestTask
from apps.ravnest.final import fetch_average
from apps.ravnest.node_setup import planned_places, show_steps
from apps.ravnest.offer import NOT_MEASURED, measure_own_line, measure_speed
from apps.ravnest.plan import pool_request
from apps.ravnest.task_training import training_of
from collectives.objects import broadcast_object, gather_objects
from pipelined.actors.agree import agree
from pipelined.actors.device.executor import TorchExecutor
from pipelined.actors.device.host_memory import free_memory
from pipelined.aio.tasks import cancel_and_wait
from pipelined.errors import AgreedError, UsageError
from pipelined.membership.connection import LocalMember, connected, local_member
from pipelined.membership.task_record import publish_task, read_task
from pipelined.process.exit import print_line, print_to_stderr
from pipelined.process.launch import Launch
from pipelined.process.reporting.progress import Say, say_nothing
from pipelined.process.stop_request import StopRequest
from pipelined.ravnest.forming.cluster_former import ClusterFormer
from pipelined.ravnest.node.node import Capacity
from pipelined.ravnest.node.ravnest_training import RavnestTraining
from pipelined.ravnest.node_process import NodeSession, run_node
from pipelined.ravnest.stage.saving import ParameterStore, SaveSettings
from pipelined.state.checkpoints.claim import claimed
from pipelined.state.stages.store import DiskStore, saved_stages
from pipelined.state.stages.versions import Version, common_step
from transports import Nursery, Transport

STOP, ENDED = ("ravnest", "stop"), ("ravnest", "over")
"""Tags: a rank requests that training stops; rank 0 says that it is over, and has fetched the model."""
OUT_OF_MEMORY = (
    "make microbatches smaller (`microbatch=`) or fewer at a time (`ahead=`), clusters fewer (`clusters=`), so that "
    "each has more nodes, or start more ranks"
)
"""What to do where a rank has no memory left."""
T = TypeVar("T", int, float)


@dataclass(frozen=True, kw_only=True)
class NodeRank:
    """One rank, prepared.

    Args:
        capacity: what its node offers, but for its line where there are several machines: that is measured.
        store: where its node saves; None: nowhere.
        run: unique name of this job, or of the one that it resumes.
        resumes: whether training goes on from a save.
    """

    transport: Transport
    job: RavnestJob
    text: Text
    task: RavnestTask
    training: RavnestTraining
    executor: TorchExecutor
    capacity: Capacity
    store: ParameterStore | None
    run: str
    resumes: bool

    async def publish(self, url: str) -> None:
        """Write to the directory what is trained."""
        async with connected(url) as (_, directory):
            await publish_task(directory, self.task, self.run)

    async def take_part(self, url: str, request: StopRequest) -> bool:
        """Run this rank's node until rank 0 ends the job; returns whether the last step was trained."""
        say = say_nothing if self.transport.rank else print_line
        async with (
            connected(url) as (endpoint, directory),
            local_member(url, endpoint, f"rank{self.transport.rank}", self.task.settings.lease) as local,
            Nursery() as tasks,
        ):
            revision = (await read_task(directory, url, say)).revision
            serving = tasks.create_task(self._serve(local, url, revision, say))
            done = await (self._follow(request) if self.transport.rank else self._lead(url, revision, request))
            await cancel_and_wait(serving)
        return done

    async def _serve(self, local: LocalMember, url: str, revision: int, say: Say) -> None:
        session = NodeSession(
            training=self.training,
            revision=revision,
            planned=planned_places(self.task, saves=self.store is not None),
            lease_s=self.task.settings.lease,
            saving=SaveSettings(self.store, 1, self.run) if self.store else None,
        )
        several = len(set(self.transport.nodes)) > 1
        line = (await measure_own_line(local, url) if several else None) or NOT_MEASURED
        capacity = replace(self.capacity, bandwidth=line.rate, delay=line.delay)
        try:
            await run_node(local, session, self.executor, capacity, say)
        except AgreedError as error:  # that of one cluster's ranks
            raise UsageError(str(error)) from error

    async def _lead(self, url: str, revision: int, request: StopRequest) -> bool:
        """On rank 0: form the clusters, and report until their end, or a stop request on any rank; then export."""
        transport, config, settings = self.transport, self.job.config, self.job.settings
        others = range(1, transport.world_size)
        async with (
            opened_trackers(config, shown=True) as trackers,
            connected(url) as (endpoint, _),
            local_member(url, endpoint, "train", self.task.settings.lease) as local,
            Nursery() as tasks,
        ):
            on_step = show_steps(print_line, config.metrics, trackers)
            planned = pool_request(settings, settings.model(self.task.vocabulary), self.job.forming)
            former = ClusterFormer(
                local, self.job.ranks, planned, on_step, print_line, resume=self.resumes, task=revision
            )
            training = tasks.create_task(former.run())
            stops: list[asyncio.Task[Any]] = [tasks.create_task(transport.receive(rank, STOP)) for rank in others]
            stops.append(tasks.create_task(request.wait()))
            await asyncio.wait([training, *stops], return_when=asyncio.FIRST_COMPLETED)
            done = training.done()
            await cancel_and_wait(training, *stops)
            if done:
                await self._finish(local)
        for rank in others:
            await transport.send(rank, ENDED, note=done)
        return done

    async def _follow(self, request: StopRequest) -> bool:
        """On other ranks: take part until rank 0 says that it is over."""
        async with Nursery() as tasks:
            forwarding = tasks.create_task(self._forward_stop(request))
            ended = await self.transport.receive(0, ENDED)
            await cancel_and_wait(forwarding)
        return bool(ended.note)

    async def _forward_stop(self, request: StopRequest) -> None:
        await request.wait()
        await self.transport.send(0, STOP)

    async def _finish(self, local: LocalMember) -> None:
        """Get the model from the nodes, export it and sample from it, as the flags request."""
        config, seq = self.job.config, self.job.settings.seq
        output = FinalOutput(config.export, config.sample, config.prompt, seq, config.seed)
        if not output.is_empty:
            weights = Weights(UntiedGPT2(self.job.model), await fetch_average(local, self.task, self.text))
            await output.write(weights, self.text.tokenizer, print_line)


async def train_ravnest(transport: Transport, job: RavnestJob, launch: Launch, text: Text, stop: StopRequest) -> int:
    """Run one rank of the job to its end; returns its exit code."""
    config = job.config
    code = await asyncio.to_thread(own_code)
    task = RavnestTask(job.settings, job.model.vocab, text.digest, code)
    training = await agree(transport, "training", asyncio.to_thread(training_of, task, text))
    resumed = await agree(transport, "run", _saved_run(transport, config))
    run = resumed or await broadcast_object(transport, "new run", secrets.token_hex(8))
    disk = DiskStore(config.checkpoint, job.model.identity(), config.keep, text.digest) if config.checkpoint else None
    executor = TorchExecutor.of_rank(transport, share_devices=launch.share_devices)
    executor.configure(remedy=OUT_OF_MEMORY)
    try:
        capacity = await _capacity(transport, task, training, executor)
        rank = NodeRank(
            transport=transport,
            job=job,
            text=text,
            task=task,
            training=training,
            executor=executor,
            capacity=capacity,
            store=disk,
            run=run,
            resumes=bool(resumed),
        )
        async with claimed(transport, config.checkpoint, lambda fact: print_to_stderr(f"warning: {fact}")):
            async with directory_of_rank0(transport, config.listen, rank.publish) as url:
                done = await rank.take_part(url, stop)
                await gather_objects(transport, "gone", True)
            if transport.rank == 0 and not done:
                where = config.checkpoint or "nowhere: give --checkpoint to keep the work"
                print_line(f"stopped on request; the last round is saved to {where}")
    finally:
        executor.close()
    return 0


async def _saved_run(transport: Transport, config: GPT2Flags) -> str:
    """The name of the run that saved the latest step, in whichever rank's directory; "": there is none.

    Raises:
        UsageError: on rank 0: there is one, and --resume is not given.
    """
    saved = saved_stages(config.checkpoint) if config.checkpoint else []
    latest = common_step(saved) or max(saved, default=None)
    found = await gather_objects(transport, "saved", latest and [*latest.version])
    step, lineage = await broadcast_object(transport, "latest", max(filter(None, found), default=[0, ""]))
    if transport.rank == 0 and lineage and config.resume is None:
        fact = f"a rank's {config.checkpoint} holds checkpoints of an earlier run (the latest: step {step})"
        raise UsageError(f"{fact}; add --resume auto to go on from it, or give --checkpoint another directory")
    return Version(step, lineage).run


async def _capacity(
    transport: Transport, task: RavnestTask, training: RavnestTraining, executor: TorchExecutor
) -> Capacity:
    """A share of its machine's memory, and its speed: the same on all ranks of a machine, so that plans are equal."""
    own = await asyncio.to_thread(free_memory) // len(transport.ranks_here)
    ram = await _least_here(transport, "free memory", own)
    flops = await agree(transport, "own speed", measure_speed(task, training, ram, executor))
    return Capacity(ram, NOT_MEASURED.rate, await _least_here(transport, "speed", flops))


async def _least_here(transport: Transport, what: str, own: T) -> T:
    """The least of all ranks of a machine."""
    found = await broadcast_object(transport, f"every {what}", await gather_objects(transport, what, own))
    return min(found[rank] for rank in transport.ranks_here)
