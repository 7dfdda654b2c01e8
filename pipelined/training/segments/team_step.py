"""One step with a flush of a member of a team: its gradients and norms are those of pieces."""

from collections import Counter
from collections.abc import Sequence

from pipelined.training.segments.flushed_step import FlushedStep
from pipelined.training.segments.segment import StepAccount
from pipelined.training.segments.team_stage import TeamStage


class TeamStep(FlushedStep):
    """See `FlushedStep`. Every member has the losses; the first one reports them."""

    async def _pass(self) -> None:
        await super()._pass()
        for stage in self._stages():
            await stage.sum_gradients(self._local.parameters)

    async def complete(self, number: int) -> StepAccount:
        account = await super().complete(number)
        member = self._context.member
        held = [stage.counts for stage in self._stages()]
        squares = {
            piece_name(name, member): square
            for name, square in account.squares.items()
            if any(counts(name) for counts in held)
        }
        if member:
            return StepAccount(squares=Counter(squares))
        return StepAccount(account.losses, account.count, Counter(squares))

    def _stages(self) -> list[TeamStage]:
        return [stage for stage in self._context.stages.values() if isinstance(stage, TeamStage)]


def piece_name(name: str, member: int) -> str:
    """A member's piece of a parameter, among the entries of the step's totals."""
    return f"{name}:{member}"


def piece_names(names: Sequence[str], members: int) -> Sequence[str]:
    """The entries of the step's totals for norms: every parameter, or every member's piece of it."""
    return names if members == 1 else [piece_name(name, member) for name in names for member in range(members)]
