"""The versions of a model's parameters, and the record of what a peer has saved.

saved/NAME        SavedStages      what a peer has on disk; expires with its lease
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipelined.membership.record import Record

SAVED = "saved/"
MAX_STAGES = 4096
"""Most stages of a model; a record with more is refused before any list of stages is made."""


class Version(NamedTuple):
    """A version of the parameters: the number of steps, and a name for the totals of these steps.

    Args:
        step: number of steps taken.
        lineage: names the run and, by a digest, the totals of all its steps: two states of one version are equal to the
            bit. "" before the first step.
    """

    step: int
    lineage: str

    @property
    def is_untrained(self) -> bool:
        """Whether no step was taken and nothing was loaded: every peer builds this state itself."""
        return self == (0, "")

    @property
    def run(self) -> str:
        """The name of the run: equal for all versions that follow from the same first step."""
        return self.lineage.partition("-")[0]


class SavedStage(NamedTuple):
    """A saved state of one stage.

    Args:
        step: number of steps taken.
        stage: number of the stage.
        stages: number of stages of the model.
        lineage: as in `Version`; equal for all stages of a step.
    """

    step: int
    stage: int
    stages: int
    lineage: str

    @property
    def version(self) -> Version:
        return Version(self.step, self.lineage)


@dataclass(frozen=True, slots=True)
class SavedStages(Record):
    """What a peer has on disk.

    Args:
        saved: the fields of each `SavedStage`. Stored as "marks".
        damaged: the saved stages that the peer could not read, in the same form.
    """

    saved: list[list[Any]] = field(metadata={"kind": list, "stored": "marks"})
    damaged: list[list[Any]] = field(default_factory=list, metadata={"kind": list, "absent": []})

    def __post_init__(self) -> None:
        for entry in [*self.saved, *self.damaged]:
            if type(entry) is not list or [type(part) for part in entry] != [int, int, int, str]:
                raise ValueError(f"SavedStages.saved: not a saved stage (got: {entry!r:.80})")
            step, stage, stages, _ = entry
            if not (step >= 0 and 0 <= stage < stages <= MAX_STAGES):
                raise ValueError(f"SavedStages.saved: out of range (step: {step}, stage: {stage} of {stages})")

    def all(self) -> list[SavedStage]:
        return [SavedStage(*entry) for entry in self.saved]


def undamaged_stages(records: Iterable[SavedStages]) -> list[SavedStage]:
    """What these peers list, without what any of them found damaged: others may list the same directory."""
    records = list(records)
    damaged = {SavedStage(*entry) for record in records for entry in record.damaged}
    return [stage for record in records for stage in record.all() if stage not in damaged]


def stages_of_run(run: str, stages: Iterable[SavedStage]) -> list[SavedStage]:
    """The stages that a run of this name saved."""
    return [stage for stage in stages if stage.version.run == run]


def whole_steps(saves: Iterable[SavedStage]) -> list[SavedStage]:
    """The steps at which every stage was saved in one lineage, as entries of stage 0."""
    stages_of_step: dict[tuple[int, str, int], set[int]] = {}
    for entry in saves:
        stages_of_step.setdefault((entry.step, entry.lineage, entry.stages), set()).add(entry.stage)
    complete_keys = [key for key, numbers in stages_of_step.items() if numbers >= set(range(key[2]))]
    return [SavedStage(step, 0, count, lineage) for step, lineage, count in complete_keys]


def common_step(saves: Iterable[SavedStage]) -> SavedStage | None:
    """The latest step at which every stage was saved in one lineage, as the entry of stage 0; None: no such step."""
    return max(whole_steps(saves), default=None)


def saved_steps(saves: Iterable[SavedStage]) -> str:
    """The saved steps of each stage, in words: "steps 10, 15: stage 0, 1; no step: stage 2"; "": nothing was saved.

    If a step was saved in several lineages, the end of each lineage is shown, because their stages do not match.
    """
    entries = sorted(set(saves))
    counts = {entry.stages for entry in entries}
    lineages: dict[int, set[str]] = {}  # by step
    for entry in entries:
        lineages.setdefault(entry.step, set()).add(entry.lineage)
    steps: dict[tuple[int, int], list[str]] = {(count, stage): [] for count in counts for stage in range(count)}
    for entry in entries:
        end = f" ({entry.lineage.rpartition('-')[2][-4:]})" if len(lineages[entry.step]) > 1 else ""
        steps[entry.stages, entry.stage].append(f"{entry.step}{end}")
    stages_by_steps: dict[tuple[int, str], list[str]] = {}  # the stages that have the same steps
    for (count, stage), step_texts in sorted(steps.items()):
        text = f"steps {', '.join(step_texts)}" if step_texts else "no step"
        stages_by_steps.setdefault((count, text), []).append(str(stage))
    totals = {count: f" of {count}" if len(counts) > 1 else "" for count in counts}
    words = (f"{text}: stage {', '.join(stages)}{totals[count]}" for (count, text), stages in stages_by_steps.items())
    return "; ".join(words)
