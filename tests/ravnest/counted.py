"""A story whose nodes are weighed: the storages of all tensors that a node's executor has seen and that still exist.

Nothing is computed from sizes. They are counted after each piece of work, so what lives only inside of one is not.
"""

import weakref
from dataclasses import replace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from apps.common.lm.models.gpt2 import UntiedGPT2
from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.ravnest.plan import layer_sizes
from benchmarks.harness.timed_executor import TimedExecutor
from pipelined.planner.trial import RandomTokens
from pipelined.ravnest.cluster_place import ClusterPlace
from pipelined.ravnest.planning.stage_sizes import StageRules, StageSizes
from pipelined.ravnest.records.generation import GENERATION, Generation
from pipelined.ravnest.stage.saving import SaveSettings
from pipelined.training.job.numerics import Numerics
from pipelined.training.optimizer import OptimizerConfig
from tests.numerics.ravnest import training_of
from tests.ravnest.invariants import WatchedMember
from tests.ravnest.story import CASE, MAX_BYTES, SECONDS, Story
from transports.rpc.world import Worlds

MICROBATCH, SEQUENCE, VOCABULARY, STEPS = 1, 16, 64, 16
RAM, SLOW_WRITE_S = 1 << 22, 1.0
MODEL = ModelConfig(3, 32, 4, VOCABULARY, SEQUENCE, dropout=0.0, tied=False)
SIZES = tuple(layer_sizes(MODEL, MICROBATCH, SEQUENCE))
TRAINING = replace(
    training_of(
        replace(CASE, microbatches=1), STEPS, OptimizerConfig(lr=1e-3, steps=STEPS, clip=0), torch.float32, every=4
    ),
    model=UntiedGPT2(MODEL),
    feed=RandomTokens(VOCABULARY, (MICROBATCH, SEQUENCE)),
    microbatch_size=MICROBATCH,
    sequence=SEQUENCE,
    numerics=Numerics(),
    overlapped=True,
)


class Seen(TorchDispatchMode):
    """The storages of one node."""

    def __init__(self):
        super().__init__()
        self._storages = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for each in tree_leaves((args, kwargs, found)):
            if isinstance(each, torch.Tensor) and each.device.type == "cpu":
                self.see(each)
        return found

    def see(self, tensor):
        storage = tensor.untyped_storage()
        self._storages[storage.data_ptr()] = storage.nbytes(), weakref.ref(storage)

    @property
    def bytes(self):
        self._storages = {at: one for at, one in self._storages.items() if one[1]() is not None}
        return sum(nbytes for nbytes, _ in self._storages.values())


class WeighingExecutor(TimedExecutor):
    """Attributes: `peaks` has by clusters and place the most bytes after a piece of work."""

    def __init__(self, clock, peaks):
        super().__init__(SECONDS, clock)
        self.seen, self.peaks, self.at = Seen(), peaks, None

    async def run(self, op, work, report_at_once=True):
        def weighed():
            with self.seen:
                found = work()
            self.weigh()
            return found

        return await super().run(op, weighed, report_at_once)

    def weigh(self):
        self.peaks[self.at] = max(self.peaks.get(self.at, 0), self.seen.bytes)


class WeighedMember(WatchedMember):
    async def train(self, generation, place, **others):
        self.executor.at = generation.number, *place
        return await super().train(generation, place, **others)


class SlowSaveSettings(SaveSettings):
    """Each write takes some seconds, in which the node trains on."""

    def saver(self):
        saver, write = super().saver(), None
        write = saver._write

        async def slow(*arguments):
            await self.sleep(SLOW_WRITE_S)
            await write(*arguments)

        saver._write = slow
        return saver

    sleep = staticmethod(Story.sleep)


class WeighedStory(Story):
    """Attributes: `peaks` has by node, and by clusters and place, the most bytes."""

    def __init__(self, training=TRAINING, **others):
        self.peaks = {}
        super().__init__(training=training, ram=RAM, ahead=None, **others)

    def _member(self, name, node, kept):
        executor = WeighingExecutor(node.clock, self.peaks.setdefault(name, {}))
        worlds = Worlds(node.endpoint, MAX_BYTES)
        return WeighedMember(self.training, worlds, executor, invariants=self.invariants, **kept)

    @property
    def every_generation(self):
        """All clusters that there were."""
        return [Generation.unpack(each.entry.value) for each in self.changes if each.key == GENERATION]

    def ratios(self, generation, number, **rules):
        """Planned over counted bytes of the nodes of one of these clusters, stage by stage, the backup's last."""
        row, sizes = generation.clusters[number], StageSizes(SIZES, StageRules(**rules))
        return [
            planned / self.peaks[holder.name][generation.number, number, stage]
            for stage, planned in enumerate(sizes.of_stages(row))
            for holder in generation.holders(ClusterPlace(number, stage))
        ]
