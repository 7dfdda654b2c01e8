"""One stage of `benchmarks.ravnest_pipeline` as a process: `python -m benchmarks.ravnest.stage URL`.

It prints the address of its endpoint, reads the run as a line of JSON, trains, and prints what it measured. A tiny
model is trained for real; its device takes as long as the run says.
"""

import asyncio
import json
import sys
from typing import Any

import torch

from apps.common.lm.models.gpt2 import UntiedGPT2
from apps.common.lm.models.gpt2_presets import ModelConfig
from benchmarks.harness.punctual import PunctualClock
from benchmarks.harness.timed_executor import TimedExecutor
from collectives.objects import gather_objects
from pipelined.actors.actor import Actor
from pipelined.aio.clock import Clock
from pipelined.membership.connection import endpoint_at
from pipelined.planner.trial import RandomTokens
from pipelined.programs.plan import Plan
from pipelined.programs.staleness import peak_alive
from pipelined.ravnest.cluster_place import ClusterPlace
from pipelined.ravnest.node.backup import PlaceReplica, fixed_order
from pipelined.ravnest.records.generation import Generation
from pipelined.ravnest.records.places import Holder, StagePlace
from pipelined.ravnest.stage.orders import NodeOrder, OrderTracer
from pipelined.traces.tracer import NullTracer
from pipelined.training.assemble import build_rank
from pipelined.training.job.description import JobDescription
from pipelined.training.job.numerics import Numerics
from pipelined.training.optimizer import OptimizerConfig
from pipelined.training.segments.stage_updates import NO_LISTENER, UpdateListener
from transports import new_event_loop
from transports.rpc.world import RpcTransport, Worlds

SEQUENCE, VOCABULARY, WIDTH = 8, 16, 8
MAX_BYTES = 1 << 26


class TimingTracer(OrderTracer):
    """Keeps the order of one rank, and when each backward ended."""

    def __init__(self, microbatches: int):
        super().__init__(microbatches, NullTracer())
        self.ends = list[float]()

    def record(self, category: str, name: str, start: float, end: float, coordinates: Any = ()) -> None:
        super().record(category, name, start, end, coordinates)
        if name == "backward":
            self.ends.append(end)


def job_of(run: dict[str, Any]) -> JobDescription:
    """What all stages of a run train.

    Args:
        run: `addresses`, `backups`, `schedule`, `ahead`, `microbatches` and `steps`.
    """
    depth = len(run["addresses"])
    knobs = {"ahead": run["ahead"]} if run["ahead"] else {}
    return JobDescription(
        model=UntiedGPT2(ModelConfig(depth, WIDTH, 1, VOCABULARY, SEQUENCE, dropout=0.0, tied=False)),
        plan=Plan(run["schedule"], depth, 1, 1, run["microbatches"], knobs),
        feed=RandomTokens(VOCABULARY, (1, SEQUENCE)),
        optimizer_settings=OptimizerConfig(lr=1e-3, steps=run["steps"], clip=0),
        numerics=Numerics(),
        sequence=SEQUENCE,
        seed=0,
    )


class PaceKeeper(UpdateListener):
    """Keeps the pace of a place with a backup."""

    def __init__(self, place: PlaceReplica):
        self._place = place

    async def after_update(self, updates: int) -> None:
        await self._place.keep_pace(updates)


def place_replica(run: dict[str, Any], world: RpcTransport, actor: Actor) -> PlaceReplica | None:
    """What both nodes of this stage do; None: it has no backup."""
    if not run["backups"]:
        return None
    alive = [int(each) for each in run["ahead"].split(",")]
    each, stage = run["microbatches"], world.rank
    row = [
        StagePlace(Holder("", at, 0), n, n + 1, k)
        for n, (at, k) in enumerate(zip(run["addresses"], alive, strict=True))
    ]
    order = NodeOrder(fixed_order(Generation(1, [row]), ClusterPlace(0, stage), each * run["steps"]), {})
    return PlaceReplica(world, actor, order, microbatches=each, alive=alive[stage])


async def trained(worlds: Worlds, run: dict[str, Any], clock: Clock) -> dict[str, Any]:
    """Train, and measure this stage; see `benchmarks.ravnest_pipeline`."""
    world = await worlds.open(f"{run['schedule']} {len(run['backups'])}", run["addresses"], run["backups"])
    tracer, steps = TimingTracer(run["microbatches"]), range(run["steps"])
    executor = TimedExecutor({"forward": run["forward"], "backward": run["backward"]}, clock, work_first=True)
    async with Actor(world) as actor:
        backed = place_replica(run, world, actor)
        orders = backed.order.of_stage(world.rank) if backed else None
        trainer = build_rank(actor, job_of(run), executor=executor, tracer=tracer, orders=orders)
        listener = PaceKeeper(backed) if backed else NO_LISTENER
        while steps:
            last = await trainer.train(steps[: 1 if trainer.plan.flushes else None], listener=listener)
            steps = steps[last.step - steps.start + 1 :]
        await gather_objects(world, "trained", True)  # a node that closes takes no copies any more
    await world.close()
    order = NodeOrder(tuple(tracer.instructions), {}).of_stage(world.rank)[0]
    return {"ends": tracer.ends, "alive": peak_alive(order), "staleness": list(last.staleness)}


async def main() -> None:
    """Open an endpoint, and train each run that is read, until there is no more."""
    torch.set_num_threads(1)
    async with await endpoint_at(sys.argv[1]) as endpoint:
        worlds, clock = Worlds(endpoint, MAX_BYTES), PunctualClock()
        print(endpoint.address, flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await trained(worlds, json.loads(line), clock)), flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
