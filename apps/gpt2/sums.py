"""Before the first step: which all-reduce sums gradients, where the run asks that it be measured.

The rule: it is decided once. The words that stand for it take the place of `measured` in the configuration, and so in
every checkpoint, and a run that goes on from one takes them from there: other sums round otherwise. No torch.
"""

from dataclasses import replace

from apps.gpt2.checks import MEASURED
from apps.gpt2.decide import recorded
from apps.gpt2.job import Job
from apps.gpt2.resume import start_of
from apps.gpt2.workload import workload
from collectives.all_reduce import choices
from pipelined.actors.agree import share
from pipelined.checkpoints import checkpoint
from pipelined.measurement.sums import measured_sums
from transports import Transport


async def decide_sums(transport: Transport, job: Job) -> Job:
    """The job as it will run; all ranks call this together, and rank 0 decides and tells.

    Cost: nothing where an algorithm was given; else some sums of each bucket by every algorithm.
    """
    if job.config.all_reduce != MEASURED:
        return job
    words = await share(transport, "sums known", _before(job) if transport.rank == 0 else None)
    why = "as in the run that is resumed"
    if words is None:
        itemsize = 8 if job.config.dtype == "float64" else 4
        sizes = workload(job.model, job.plan, job.sequence, itemsize=itemsize)
        words, why = await measured_sums(transport, job.plan, sizes.parameters), "as measured"
    if transport.rank == 0:
        print(f"all-reduce: {words} ({why})", flush=True)
    return replace(job, config=replace(job.config, all_reduce=words))


def _before(job: Job) -> str | None:
    """What the run that is resumed summed by, if it was arranged in the same way and chose for itself."""
    path = start_of(job.config)
    if path is None:
        return None
    config = checkpoint.open(path).meta.config
    words, before = config.get("all_reduce"), recorded(config, job.plan.schedule)
    if before is None or before.plan != job.plan or not isinstance(words, str) or words in ("auto", MEASURED):
        return None
    try:
        choices(words)
    except ValueError:  # of a release that had other algorithms
        return None
    return words
