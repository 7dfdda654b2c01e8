"""The parts of a process that follow from what a swarm trains: its peer, its trainer, its copy of all stages.

`python -m apps.swarm` and the ranks of `--schedule swarm` build their processes here. Imports torch.
"""

from dataclasses import dataclass
from functools import partial

from apps.swarm.config import Told
from apps.swarm.data import MicrobatchFeed
from apps.swarm.training import rules_of, training_of
from pipelined.actors.executor import TorchExecutor
from pipelined.membership.client import Node
from pipelined.swarm.config import PeerConfig, Rules
from pipelined.swarm.observer import SwarmObserver, SwarmSnapshot
from pipelined.swarm.processes import PeerProcess, TrainerProcess
from pipelined.swarm.stages.torch_stage import TorchStage
from pipelined.swarm.stages.training import Training


@dataclass(frozen=True)
class Session:
    """What all processes of one swarm share.

    Args:
        told: what the directory keeps of the training.
    """

    told: Told
    training: Training
    rules: Rules

    @classmethod
    def of(cls, told: Told) -> "Session":
        """Build the model and the rules; blocks. Raises UsageError: see `training_of`."""
        training = training_of(told)
        return cls(told, training, rules_of(told, training))

    def peer(self, node: Node, executor: TorchExecutor, config: PeerConfig) -> PeerProcess:
        """A peer that computes with this executor."""
        return PeerProcess(
            node, partial(TorchStage, self.training, device=executor.device), self.rules, executor, config
        )

    def trainer(self, node: Node, feed: MicrobatchFeed, *, slots: int = 4, resume: bool = False) -> TrainerProcess:
        """A trainer of all steps; see `TrainerProcess`."""
        steps = self.told.subject.steps
        return TrainerProcess(node, feed, self.rules, slots=slots, steps=steps, resume=resume)

    async def snapshot(self, node: Node) -> SwarmSnapshot:
        """The state of all stages, on the CPU; see `SwarmObserver.snapshot`."""
        executor = TorchExecutor("cpu", node.clock)
        try:
            observer = SwarmObserver(node, partial(TorchStage, self.training), self.rules, executor)
            return await observer.snapshot()
        finally:
            executor.close()
