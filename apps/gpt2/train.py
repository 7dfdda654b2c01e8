"""The GPT-2 program of one rank, from its stages to the last sample. Needs torch."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from apps.common.flags.run_flags import start_of
from apps.common.lm.data.ngram import compare_with_ngrams
from apps.common.lm.data.text import Text
from apps.common.lm.data.tokens import TokenFeed, windows_of
from apps.common.lm.huggingface.initial import load_initial
from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.gpt2_presets import layer_costs
from apps.common.lm.sampling import Picker
from apps.common.lm.sharded.gpt2 import ShardedGPT2
from apps.common.run.choose import clip_of
from apps.common.run.loop import ReportedLoop
from apps.common.run.numerics import numerics
from apps.common.run.report import Report
from apps.common.run.trackers import Tracker, opened_trackers
from apps.gpt2.job import GPT2Job
from apps.gpt2.text import batches_of
from collectives.objects import broadcast_object, gather_objects
from pipelined.actors.actor import Actor
from pipelined.actors.device.executor import TorchExecutor
from pipelined.aio.clock import RealClock
from pipelined.errors import printable
from pipelined.planner.predicted_moves import drifted_moves
from pipelined.process.launch import Launch
from pipelined.process.stop_request import StopRequest
from pipelined.programs.partition import partition
from pipelined.state.checkpoints.saving import CheckpointSaver
from pipelined.state.checkpoints.trainer_state import SaveTarget, load
from pipelined.state.checkpoints.whole_state import write_parameters
from pipelined.traces.gather import gather_and_write
from pipelined.traces.tracer import NullTracer, Tracer
from pipelined.training.assemble import build_rank
from pipelined.training.digests import model_digest
from pipelined.training.evaluate import evaluate, sample
from pipelined.training.job.description import JobDescription
from pipelined.training.optimizer import OptimizerConfig
from pipelined.training.planned_bytes import planned_bytes
from pipelined.training.rank_trainer import RankTrainer
from pipelined.training.segments.replay import Order, of_rank, packed, read_orders
from pipelined.training.segments.step_report import StepReport
from pipelined.training.stages.team_stage import TeamStage
from transports import Transport


@dataclass
class RankTraining:
    """The training of one rank, and what its report needs."""

    job: GPT2Job
    text: Text
    trainer: RankTrainer
    stop: StopRequest
    claimed: bool
    saver: CheckpointSaver
    trackers: Sequence[Tracker] = ()

    @property
    def first_rank(self) -> bool:
        return self.trainer.context.actor.rank == 0

    async def train(
        self, steps: range, stopping: Callable[[], bool], on_step: Callable[[StepReport], None], /
    ) -> StepReport:
        """See `TrainableRank.train`."""
        return await self.trainer.train(steps, stopping, on_step)

    async def save(self, directory: Path, done: int, keep: int) -> Path:
        """Save the state after `done` steps; returns the checkpoint's path on rank 0."""
        return await self.saver.save(done, self._target(directory, keep))

    async def start_save(self, directory: Path, done: int, keep: int) -> None:
        """Copy the state, and save it while the next steps run."""
        await self.saver.start_save(done, self._target(directory, keep))

    def _target(self, directory: Path, keep: int) -> SaveTarget:
        return SaveTarget(directory, keep, {**self.job.to_dict(), "text": self.text.digests}, self.claimed)

    async def planned_bytes(self) -> int:
        """Payload bytes that this rank should send in a step. All ranks call this before their first step."""
        job = self.job
        ids = torch.empty(self.job.plan.rows, self.job.sequence, dtype=torch.int64, device="meta")
        cut = partition(layer_costs(job.model, job.sequence), job.plan.depth)
        sums = await self.trainer.planned_sum_bytes()
        return await planned_bytes(self.trainer, cut, (ids, ids), numerics(job.config), sums=sums)

    async def digest(self) -> str:
        """A digest of all parameters, on rank 0; "" elsewhere."""
        return await model_digest(self.trainer.context.actor.transport, self.trainer.local)

    async def evaluate(self, tag: int, report: Report) -> float:
        """The mean nats a token over the validation text."""
        windows = windows_of(self.text, self.job.sequence)
        trainer = self.trainer
        async with trainer.with_last_update():
            with report.evaluating() as show:
                return await evaluate(trainer.context, trainer.model, windows, trainer.world, tag=tag, on_progress=show)


async def train(
    transport: Transport, job: GPT2Job, launch: Launch, text: Text, stop: StopRequest, *, claimed: bool = False
) -> int:
    """Run one rank of a job to its end; returns its exit code.

    Args:
        claimed: on rank 0: whether this run has claimed its checkpoint directory, so that no other run saves there.
    """
    config = job.config
    clock = RealClock()
    executor = TorchExecutor.of_rank(transport, numerics(config).threads, share_devices=launch.share_devices)
    _, worker = job.plan.group_and_worker(transport.rank)
    executor.configure(planned_memory=partial(job.planned_memory, worker))
    tracer = Tracer(clock.now) if config.trace else NullTracer()
    try:
        async with Actor(transport) as actor:
            if actor.rank == 0:
                print(describe_data(job, text, executor.device), flush=True)
            trainer = _build(actor, job, text, executor, tracer=tracer, orders=await _share_orders(transport, job))
            async with CheckpointSaver(trainer) as saver, opened_trackers(config, actor.rank == 0) as trackers:
                await _run(RankTraining(job, text, trainer, stop, claimed=claimed, saver=saver, trackers=trackers))
                await trainer.rank_optimizer.finish_update()  # an error of the last update is one of the job
            if config.trace:
                await gather_and_write(transport, tracer, config.trace, job.plan.tensor)
    finally:
        executor.close()
    return 0


def describe_data(job: GPT2Job, text: Text, device: str) -> str:
    """The data and the device, in a line."""
    device_text = f"{device} (threads a rank: {torch.get_num_threads()})" if device == "cpu" else device
    tokens = job.plan.batch * job.sequence * job.config.steps
    return f"{text.describe(tokens, job.config.steps, job.sequence)}; device: {device_text}"


async def _share_orders(transport: Transport, job: GPT2Job) -> dict[int, Order]:
    """This rank's order of instructions in each step, where --replay is given; rank 0 reads the file."""
    path, orders = job.config.replay, None
    if path is None:
        return {}
    if transport.rank == 0:
        in_order = any(state in ("zero2", "zero3") for state in job.states.values())
        orders = packed(await asyncio.to_thread(read_orders, path, job.plan, in_order))
    return of_rank(await broadcast_object(transport, "replay", orders), transport.rank)


def _build(
    actor: Actor, job: GPT2Job, text: Text, executor: TorchExecutor, *, tracer: Tracer, orders: Mapping[int, Order]
) -> RankTrainer:
    config = job.config
    description = JobDescription(
        model=ShardedGPT2(job.model, job.factors, job.states, recompute_attention=config.recompute_attention)
        if job.factors
        else GPT2(job.model, text.is_packed),
        plan=job.plan,
        feed=TokenFeed(batches_of(job, text.train)),
        optimizer_settings=optimizer_of(job),
        numerics=numerics(config),
        sequence=job.sequence,
        seed=config.seed,
        fresh=config.init is None,
    )
    return build_rank(actor, description, executor=executor, tracer=tracer, orders=orders)


def optimizer_of(job: GPT2Job) -> OptimizerConfig:
    """AdamW and its learning rate, as the flags say."""
    config = job.config
    return OptimizerConfig(
        config.lr,
        config.steps,
        config.warmup,
        floor=config.lr_floor,
        clip=clip_of(job.config, job.plan),
        weight_decay=config.weight_decay,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        decay=config.lr_schedule,
    )


async def _run(rank: RankTraining) -> None:
    """Load, train, evaluate, save, export, sample; or train, save and end on a stop request."""
    job, config = rank.job, rank.job.config
    done = await _restore(rank)
    tokens = job.plan.batch * job.sequence
    with Report(
        rank.first_rank,
        first_step=done,
        steps=config.steps,
        tokens=tokens,
        metrics=config.metrics,
        predicted_s=job.expected_s,
        trackers=rank.trackers,
    ) as report:
        if config.metrics and done < config.steps:
            sent_bytes = await rank.planned_bytes()
            transport = rank.trainer.context.actor.transport
            report.planned_bytes = sum(await gather_objects(transport, "planned bytes", sent_bytes))

        async def evaluate(done: int) -> float:
            return await rank.evaluate(done, report)

        loop = ReportedLoop(config, job.plan, rank, report, stop=rank.stop, evaluate=evaluate)
        loss = await loop.run(done)
        for line in await _drift_of_moves(rank):
            report.say(line)
        if loss is not None:
            await _finish(rank, report, loss)


async def _drift_of_moves(rank: RankTraining) -> list[str]:
    """On rank 0 what the moves of teams took beside the plan's prediction; nothing where no plan predicts them."""
    trainer = rank.trainer
    slowest = dict[tuple[int, str], float]()
    if not rank.job.moves:
        return []
    totals = defaultdict[tuple[int, str], float](float)
    stages = [stage.moves for stage in trainer.context.stages.values() if isinstance(stage, TeamStage)]
    for timer in stages + trainer.sums.move_timers:
        for phase, seconds in timer.seconds.items():
            for stage in timer.stages:
                totals[stage, phase] += seconds
    rows = [(*place, seconds) for place, seconds in totals.items()]
    for times in await gather_objects(trainer.context.actor.transport, "moves", rows):
        for stage, phase, seconds in times:
            slowest[stage, phase] = max(seconds, slowest.get((stage, phase), 0.0))
    return drifted_moves(rank.job.moves, slowest)


async def _finish(rank: RankTraining, report: Report, loss: float) -> None:
    config, text, job = rank.job.config, rank.text, rank.job
    if rank.first_rank:
        report.say(compare_with_ngrams(loss, await asyncio.to_thread(text.score_ngrams, job.sequence)))
    if message_lines := await rank.trainer.context.messages.report():
        report.say(message_lines)
    if config.export is not None:
        await _export(rank, config.export)
        report.say(f"exported to {config.export}")
    if config.sample:
        await _sample(rank, report.say)


async def _sample(rank: RankTraining, say: Callable[[str], None]) -> None:
    config, tokenizer = rank.job.config, rank.text.tokenizer
    prompt = tokenizer.encode(config.prompt).tolist()
    pick = Picker(config.seed)
    async with rank.trainer.with_last_update():
        context, sequence = rank.trainer.context, rank.job.sequence
        sequences = await sample(context, [prompt], config.sample, sequence, pick, cached=True)
    if rank.first_rank:
        say("sample:\n" + printable(tokenizer.decode(sequences[0])))


async def _restore(rank: RankTraining) -> int:
    """Load the checkpoint or the weights that the run begins with; returns the number of steps done."""
    config = rank.job.config
    path = start_of(config)
    if path is not None:
        return await load(rank.trainer, path)
    if config.init is not None:
        from apps.common.lm.huggingface.read import each_tensor

        await load_initial(rank.trainer, partial(each_tensor, config.init))
    return 0


async def _export(rank: RankTraining, directory: Path) -> None:
    """Write a Hugging Face directory on rank 0, parameter by parameter."""
    from apps.common.lm.huggingface.write import export

    model, tokenizer = rank.job.model, rank.text.tokenizer
    await write_parameters(rank.trainer, lambda parameters: export(directory, parameters, model, tokenizer))
