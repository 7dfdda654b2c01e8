"""Stages that torch's compiler translates: what they go with, and their compilation, which alone imports torch."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipelined.errors import UsageError
from pipelined.programs.plan import Plan, PlanError
from pipelined.programs.recording import record
from pipelined.schedules import find

MOST_STAGES = 256
"""Stages of one process, all ranks of which may run in it: torch counts each as one more compilation of one forward."""


def require_compilable(plan: Plan, *, exact: bool, attention: bool) -> None:
    """Refuse to compile where a stage would compute something else, or cannot be compiled.

    Args:
        exact, attention: see `require_alone`.
    Raises:
        PlanError: the plan has teams, or a backward in halves.
        UsageError: as `require_alone` and `require_compiler`.
    """
    if not is_compilable(plan):
        fact = f"a compiled stage is one rank's, with a whole backward ({plan.schedule}"
        raise PlanError(f"{fact}, tensor: {plan.tensor}); leave compile out, or use one_f_one_b and tensor 1")
    require_alone(exact=exact, attention=attention)
    require_compiler()


def require_alone(*, exact: bool, attention: bool) -> None:
    """Refuse to compile beside what a compiled stage would compute otherwise.

    Args:
        exact: whether gradients are summed exactly.
        attention: whether the cores of attentions are computed again.
    Raises:
        UsageError: one of them is asked for.
    """
    if exact or attention:
        why = "exact sums need the same roundings at every cut" if exact else "it chooses itself what runs again"
        raise UsageError(f"a compiled stage takes neither exact sums nor recomputed attentions ({why}); leave it out")


def require_compiler() -> None:
    """Raise UsageError where torch finds no C++ compiler."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise UsageError(f"torch compiles with a C++ compiler, which is missing (CXX: {compiler}); install g++")


def is_compilable(plan: Plan) -> bool:
    """Whether the plan has one rank a worker, and whole backwards."""
    if plan.tensor > 1:
        return False
    workers = record(find(plan.schedule), plan.proof_shape).workers
    return all(instruction.op != "I" for instructions in workers for instruction in instructions)


class CompiledModule:
    """Computes what a module does, by a function that is compiled for the first shapes, in one piece.

    Args:
        stage: the number of the stage, for messages.
    Cost: seconds to minutes at the first forward, and at its backward.
    """

    def __init__(self, module: Any, stage: int):
        import torch

        self._run = torch.compile(module, fullgraph=True, dynamic=False)
        self._stage = stage

    def __call__(self, x: Any) -> Any:
        import torch

        torch._dynamo.config.recompile_limit = MOST_STAGES  # of this thread alone
        with self.compiling():
            return self._run(x)

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """What runs inside the `with` block may compile: a first forward, or the backward of its result.

        Raises:
            UsageError: torch cannot compile it.
        """
        from torch._dynamo.exc import TorchDynamoException

        try:
            yield
        except TorchDynamoException as error:
            text = str(error)
            lines = [part.strip().partition("\n\n")[0] for part in (text, text.partition("\nOutput:\n")[2])]  # of g++
            fact = f"torch cannot compile stage {self._stage} in one piece ({' '.join(' '.join(lines).split())})"
            raise UsageError(f"{fact}; leave compile out") from error
