"""What a contest of pipelines came to: a line for each contender's schedule, and the ratios between contenders.

Nothing is measured here. Rates are tokens a second, one for each round; ratios are taken within a round.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction

from apps.common.lm.models.gpt2_presets import layer_costs
from benchmarks.pipelines.contest import Contest, Ends, stages
from pipelined.simulation import Machine, StageCosts, Workload, simulate

PROMISED, WANTED = {2: 1.0, 4: 1.0}, {2: 1.1}
"""By number of ranks: our best schedule's tokens a second over those of torch's best."""


@dataclass(frozen=True)
class Entry:
    """One schedule of one contender on one number of ranks.

    Args:
        contender: `ours` or `torch`.
        rates: tokens a second, one a round.
        ceiling: tokens a second of independent trainers of the whole model, one a core, in the same rounds.
        cpu_s: core-seconds a step, all ranks together, one a round.
        limit: the share of the ceiling that the schedule's bubbles, the cut and the cores leave to any runtime.
    """

    contender: str
    schedule: str
    ranks: int
    ends: Ends
    rates: tuple[float, ...]
    ceiling: tuple[float, ...]
    cpu_s: tuple[float, ...]
    limit: float

    @property
    def rate(self) -> float:
        """The median rate."""
        return statistics.median(self.rates)

    @property
    def share(self) -> float:
        """Of the ceiling: the median over rounds."""
        return statistics.median(ratios(self.rates, self.ceiling))

    def line(self) -> str:
        """As a row of the table."""
        cut = "|".join(map(str, self.ends))
        return (
            f"{self.contender:9} {self.schedule:12} {self.ranks:5} {self.rate:9.0f} "
            f"({min(self.rates):.0f}-{max(self.rates):.0f}) {self.share:7.1%} {self.limit:7.1%} "
            f"{self.share / self.limit:7.1%} {statistics.median(self.cpu_s):7.2f}  {cut}"
        )

    def to_dict(self) -> dict[str, object]:
        """As JSON can hold it."""
        return {**asdict(self), "rate": self.rate, "share": self.share}


ENTRY_HEAD = (
    f"{'contender':9} {'schedule':12} {'ranks':>5} {'tokens/s':>9} (least-most) of the ceiling, computed limit, "
    "of the limit; core-s a step; cut"
)


@dataclass(frozen=True)
class Duel:
    """Our rates over torch's, round by round."""

    ours: Entry
    theirs: Entry
    best: bool = False
    """Whether each side's schedule is its fastest; only these carry a promise."""

    @property
    def ratios(self) -> list[float]:
        return ratios(self.ours.rates, self.theirs.rates)

    @property
    def ratio(self) -> float:
        """The median."""
        return statistics.median(self.ratios)

    @property
    def kept(self) -> bool | None:
        """Whether the promise is kept; None where nothing is promised."""
        promised = PROMISED.get(self.ours.ranks) if self.best else None
        return None if promised is None else self.ratio >= promised

    def line(self) -> str:
        """As a row of the table."""
        names = f"ours {self.ours.schedule} over torch {self.theirs.schedule}" + (
            " (best of each)" if self.best else ""
        )
        text = f"{self.ours.ranks} ranks: {names}: {self.ratio:.3f} ({min(self.ratios):.3f}-{max(self.ratios):.3f})"
        if self.kept is None:
            return text
        wanted = WANTED.get(self.ours.ranks)
        more = f"; {wanted} wanted" if wanted and self.ratio < wanted else ""
        return f"{text}  {'kept' if self.kept else 'short of'} {PROMISED[self.ours.ranks]:.1f}{more}"

    def to_dict(self) -> dict[str, object]:
        """As JSON can hold it."""
        names = {"ranks": self.ours.ranks, "ours": self.ours.schedule, "torch": self.theirs.schedule, "best": self.best}
        return {**names, "ratios": self.ratios, "ratio": self.ratio, "kept": self.kept}


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """The quotients round by round."""
    return [a / b for a, b in zip(over, under, strict=True)]


def duels(entries: Iterable[Entry]) -> list[Duel]:
    """By number of ranks: each schedule that both have, each of ours beside torch's 1F1B, and the best of each."""
    found, entries = list[Duel](), list(entries)
    for ranks in dict.fromkeys(entry.ranks for entry in entries):
        ours, theirs = (
            {e.schedule: e for e in entries if (e.contender, e.ranks) == (contender, ranks)}
            for contender in ("ours", "torch")
        )
        found += [Duel(ours[name], theirs[name]) for name in ours if name in theirs]
        if "one_f_one_b" in theirs:
            found += [Duel(entry, theirs["one_f_one_b"]) for name, entry in ours.items() if name not in theirs]
        if ours and theirs:
            found.append(Duel(*(max(side.values(), key=lambda e: e.rate) for side in (ours, theirs)), best=True))
    return found


def limit(contest: Contest, schedule: str, ends: Ends, cores: int) -> float:
    """The share of what independent trainers reach that any runtime can reach by a schedule on a cut.

    Operations are counted, a backward is twice a forward (both halves alike), messages and sums are free, and ranks
    beyond the cores share them.
    """
    layers = [Fraction(cost) for cost in layer_costs(contest.config, contest.sequence)]
    costs = [float(sum(layers[layer] for layer in stage) / sum(layers)) for stage in stages(ends)]
    workload = Workload([StageCosts(forward=cost, backward=2 * cost) for cost in costs])
    step = simulate(contest.plan(schedule, ends), workload, Machine(cores=cores)).step_s
    return contest.microbatches * 3 / cores / step
