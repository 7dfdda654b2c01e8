"""One rank of `--schedule ravnest`: a node; rank 0 also has the directory, forms clusters and exports.

Over the job's transport the ranks exchange the directory's address, and the end of training. All else they do as
the nodes of `python -m apps.ravnest`.
"""

import asyncio
import secrets

from apps.common.lm.data.text import Text
from apps.gpt2.config import GPT2Flags
from apps.gpt2.rank_directory import directory_of_rank0
from apps.gpt2.ravnest.job import RavnestJob
from apps.gpt2.ravnest.rank import ENDED, OUT_OF_MEMORY, STOP, NodeRank, capacity_of
from apps.gpt2.ravnest.rank_zero import lead
from apps.ravnest.code import own_code
from apps.ravnest.flags.config import RavnestTask
from apps.ravnest.task_training import training_of
from collectives.objects import broadcast_object, gather_objects
from pipelined.actors.agree import agree
from pipelined.actors.device.executor import TorchExecutor
from pipelined.aio.tasks import cancel_and_wait
from pipelined.errors import UsageError
from pipelined.membership.connection import connected, local_member
from pipelined.membership.task_record import read_task
from pipelined.process.exit import print_line, print_to_stderr
from pipelined.process.launch import Launch
from pipelined.process.reporting.progress import say_nothing
from pipelined.process.stop_request import StopRequest
from pipelined.state.checkpoints.claim import claimed
from pipelined.state.stages.store import DiskStore, saved_stages
from pipelined.state.stages.versions import Version, common_step
from transports import Nursery, Transport


async def train_ravnest(transport: Transport, job: RavnestJob, launch: Launch, text: Text, stop: StopRequest) -> int:
    """Run one rank of the job to its end; returns its exit code."""
    config = job.config
    code = await asyncio.to_thread(own_code)
    task = RavnestTask(job.settings, job.model.vocab, text.digest, code)
    training = await agree(transport, "training", asyncio.to_thread(training_of, task, text))
    resumed_run = await agree(transport, "run", _saved_run(transport, config))
    run = resumed_run or await broadcast_object(transport, "new run", secrets.token_hex(8))
    disk = DiskStore(config.checkpoint, job.model.identity(), config.keep, text.digest) if config.checkpoint else None
    executor = TorchExecutor.of_rank(transport, share_devices=launch.share_devices)
    executor.configure(remedy=OUT_OF_MEMORY)
    try:
        capacity = await capacity_of(transport, task, training, executor)
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
            resumes=bool(resumed_run),
        )
        async with claimed(transport, config.checkpoint, lambda fact: print_to_stderr(f"warning: {fact}")):
            async with directory_of_rank0(transport, config.listen, rank.publish) as url:
                done = await _take_part(rank, url, stop)
                await gather_objects(transport, "gone", True)
            if transport.rank == 0 and not done:
                where = config.checkpoint or "nowhere: give --checkpoint to keep the work"
                print_line(f"stopped on request; the last round is saved to {where}")
    finally:
        executor.close()
    return 0


async def _take_part(rank: NodeRank, url: str, request: StopRequest) -> bool:
    """Run this rank's node until rank 0 ends the job; returns whether the last step was trained."""
    say = say_nothing if rank.transport.rank else print_line
    async with (
        connected(url) as (endpoint, directory),
        local_member(url, endpoint, f"rank{rank.transport.rank}", rank.task.settings.lease) as local,
        Nursery() as tasks,
    ):
        revision = (await read_task(directory, url, say)).revision
        serving = tasks.create_task(rank.serve(local, url, revision, say))
        done = await (_follow(rank.transport, request) if rank.transport.rank else lead(rank, url, revision, request))
        await cancel_and_wait(serving)
    return done


async def _follow(transport: Transport, request: StopRequest) -> bool:
    """On other ranks: take part until rank 0 says that it is over."""
    async with Nursery() as tasks:
        forwarding = tasks.create_task(_forward_stop(transport, request))
        message = await transport.receive(0, ENDED)
        await cancel_and_wait(forwarding)
    return bool(message.note)


async def _forward_stop(transport: Transport, request: StopRequest) -> None:
    await request.wait()
    await transport.send(0, STOP)


async def _saved_run(transport: Transport, config: GPT2Flags) -> str:
    """The name of the run that saved the latest step, in whichever rank's directory; "": there is none.

    Raises:
        UsageError: on rank 0: there is one, and --resume is not given.
    """
    stages = saved_stages(config.checkpoint) if config.checkpoint else []
    latest = common_step(stages) or max(stages, default=None)
    versions = await gather_objects(transport, "saved", latest and [*latest.version])
    step, lineage = await broadcast_object(transport, "latest", max(filter(None, versions), default=[0, ""]))
    if transport.rank == 0 and lineage and config.resume is None:
        fact = f"a rank's {config.checkpoint} holds checkpoints of an earlier run (the latest: step {step})"
        raise UsageError(f"{fact}; add --resume auto to go on from it, or give --checkpoint another directory")
    return Version(step, lineage).run
