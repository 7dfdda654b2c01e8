"""The part of rank 0 in `--schedule ravnest`, beside its node: it forms the clusters, reports, and exports."""

import asyncio
from typing import Any

from apps.common.lm.export import FinalOutput
from apps.common.lm.models.gpt2 import UntiedGPT2
from apps.common.lm.weights import Weights
from apps.common.run.trackers import opened_trackers
from apps.gpt2.ravnest.rank import ENDED, STOP, NodeRank
from apps.ravnest.final import fetch_average
from apps.ravnest.node_setup import show_steps
from apps.ravnest.plan import pool_request
from pipelined.aio.tasks import cancel_and_wait
from pipelined.membership.connection import LocalMember, connected, local_member
from pipelined.process.exit import print_line
from pipelined.process.stop_request import StopRequest
from pipelined.ravnest.forming.cluster_former import ClusterFormer
from transports import Nursery


async def lead(rank: NodeRank, url: str, revision: int, request: StopRequest) -> bool:
    """On rank 0: form the clusters, and report until their end, or a stop request on any rank; then export."""
    transport, config, settings = rank.transport, rank.job.config, rank.job.settings
    other_ranks = range(1, transport.world_size)
    async with (
        opened_trackers(config, shown=True) as trackers,
        connected(url) as (endpoint, _),
        local_member(url, endpoint, "train", rank.task.settings.lease) as local,
        Nursery() as tasks,
    ):
        on_step = show_steps(print_line, config.metrics, trackers)
        pool = pool_request(settings, settings.model(rank.task.vocabulary), rank.job.forming)
        former = ClusterFormer(local, rank.job.ranks, pool, on_step, print_line, resume=rank.resumes, task=revision)
        training = tasks.create_task(former.run())
        stops: list[asyncio.Task[Any]] = [tasks.create_task(transport.receive(number, STOP)) for number in other_ranks]
        stops.append(tasks.create_task(request.wait()))
        await asyncio.wait([training, *stops], return_when=asyncio.FIRST_COMPLETED)
        done = training.done()
        await cancel_and_wait(training, *stops)
        if done:
            await _finish(rank, local)
    for number in other_ranks:
        await transport.send(number, ENDED, note=done)
    return done


async def _finish(rank: NodeRank, local: LocalMember) -> None:
    """Get the model from the nodes, export it and sample from it, as the flags request."""
    config, seq = rank.job.config, rank.job.settings.seq
    output = FinalOutput(config.export, config.sample, config.prompt, seq, config.seed)
    if not output.is_empty:
        weights = Weights(UntiedGPT2(rank.job.model), await fetch_average(local, rank.task, rank.text))
        await output.write(weights, rank.text.tokenizer, print_line)
