"""Train VGG13's shape on handwritten digits: `mpirun -n 4 python -m apps.vgg --tensor 2`, or without a launcher.

Read the flags, detect the launcher, choose what was left open; then run one coroutine on each rank. Torch is imported
only after every check that does not need it.
"""

import os
import sys

from apps.common.flags import start_of
from apps.common.paths import check_directory, check_file
from apps.vgg.config import Config, parse
from apps.vgg.digits import require_scikit_learn
from apps.vgg.job import AUTO, Job, resolve
from collectives.algorithms import parse_choice
from pipelined import __version__
from pipelined.aio.events import log_to_stderr
from pipelined.errors import UsageError
from pipelined.process.exit import INTERRUPTED, end_process, silence_stdout
from pipelined.process.launch import AGENT, ALONE, Launch, detect
from pipelined.process.run import parsed, refuse, run
from pipelined.process.stop_request import StopRequest
from pipelined.programs.proof.check import check
from pipelined.programs.record import record
from pipelined.schedules import find
from pipelined.state.checkpoints import checkpoint
from pipelined.training.exchange.compression import check_codec
from transports import Transport


def main(arguments: list[str] | None = None) -> int:
    """Run the program; returns the exit code (0 done or saved, 1 failure, 2 usage, 130 interrupted)."""
    launch, arguments = ALONE, sys.argv[1:] if arguments is None else arguments
    try:
        launch = detect(os.environ)
        config = parsed(launch, lambda: _flags(arguments))
        log_to_stderr(config.log)
        launch = detect(os.environ, config.transport)
        job = resolve(config, launch.world_size)
        if config.print_config or config.dry_run:
            return _show(job, launch)
        check_job(job)
        return _run(job, launch)
    except UsageError as error:
        return refuse(error, launch)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        silence_stdout()
        return 0


def _flags(arguments: list[str]) -> Config:
    """Parse the command line; raises SystemExit after --version or --help."""
    if "--version" in arguments:
        print(f"pipelined {__version__}")
        raise SystemExit(0)
    return parse(arguments)


def check_job(job: Job) -> None:
    """Refuse a job that would fail later. No torch.

    Raises:
        UsageError: the first mistake found, with its remedy.
    """
    config = job.config
    require_scikit_learn()
    check(record(find(job.plan.schedule), job.plan.proof_shape))
    try:
        parse_choice(config.all_reduce)
    except ValueError as error:
        raise UsageError(f"--all-reduce: {error}") from error
    check_codec(config.compress, "--compress")
    if config.metrics is not None:
        check_file("--metrics", config.metrics)
    if config.checkpoint is not None:
        check_directory("--checkpoint", config.checkpoint)
    path = start_of(config)
    if path is not None and (done := checkpoint.open(path).meta.step) > config.steps:
        raise UsageError(f"{path} is beyond the last step (saved: {done}, --steps {config.steps}); raise --steps")


def _show(job: Job, launch: Launch) -> int:
    if launch.rank == 0:
        print(job.json() if job.config.print_config else f"{job.describe()}\n{_table(job)}")
    return 0


def _table(job: Job) -> str:
    from apps.common.plan_table import plan_table
    from apps.vgg.planned_model import planned_vgg
    from pipelined.programs.partition import partition

    planned = planned_vgg(job.config, job.plan.batch)
    cut = partition(planned.layer_costs, job.plan.depth)
    return plan_table(job.plan, cut, planned.workload(job.plan), job.config.recompute)


def _run(job: Job, launch: Launch) -> int:
    from apps.vgg.planned_model import plan_now
    from apps.vgg.train import described, train, training_job

    if job.config.plan == AUTO:
        job = resolve(job.config, launch.world_size, plan_now(job.config, job.plan.batch, launch))
    training, stop = training_job(job), StopRequest(os.getppid() if AGENT in os.environ else None)
    if launch.rank == 0:
        split = described(training)
        lines = [job.describe(), *([split] if split else []), f"launch: {launch.by}, transport {launch.url}"]
        print("\n".join(lines), flush=True)

    async def rank(transport: Transport) -> int:
        stop.listen()
        return await train(transport, job, launch, stop, training)

    return run(launch, job.plan.world_size, rank, job.plan.stages_of)


if __name__ == "__main__":
    end_process(main())
