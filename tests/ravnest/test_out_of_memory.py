"""Nodes on devices with little memory: the error names the planned bytes, and these are what the nodes need."""

import asyncio
import re

import pytest

from apps.ravnest.__main__ import parse
from apps.ravnest.commands import OUT_OF_MEMORY, serve, train
from apps.ravnest.flags.config import RavnestTask
from apps.ravnest.node_setup import planned_places
from pipelined.aio.clock import RealClock, run_virtual
from pipelined.aio.tasks import cancel_and_wait
from pipelined.errors import OutOfMemory
from pipelined.membership.directory import EmbeddedDirectory, serve_directory
from pipelined.membership.task_record import read_task
from pipelined.ravnest.cluster_place import ClusterPlace
from pipelined.ravnest.node import cluster_member as cluster
from pipelined.ravnest.node.planned_memory import PlannedPlaces
from pipelined.ravnest.planning.stage_sizes import StageRules
from pipelined.ravnest.records.generation import GENERATION, Generation
from pipelined.training import assemble
from pipelined.training.stages.stage import Stage
from tests.numerics.test_ravnest_rounds import on_loop
from tests.ravnest.counted import SIZES, TRAINING, WeighedStory, WeighingExecutor, replace
from tests.ravnest.test_backups import replaced
from tests.ravnest.test_gpt2_ravnest import trained
from transports.rpc import open_endpoint

REMEDY = "start with less --ram"


class LimitedExecutor(WeighingExecutor):
    """A device with as many bytes of memory as this part of what is planned for its place."""

    remedy = REMEDY

    def __init__(self, clock, peaks, part):
        super().__init__(clock, peaks)
        self._part = part

    def weigh(self):
        super().weigh()
        if self.planned_memory and self.seen.bytes > self._part * self.planned_memory():
            raise MemoryError(f"{self.seen.bytes} bytes")


class LimitedStory(WeighedStory):
    """Ends with the first node that has no memory left.

    Args:
        part: of the planned bytes, the memory of each node; 1.02: what the plan may be too low by.
    """

    planned = PlannedPlaces(SIZES, StageRules())

    def __init__(self, part, training=TRAINING, **others):
        self._part, self.error = part, None
        super().__init__(training=training, **others)

    def _member(self, name, node, kept):
        member = super()._member(name, node, kept)
        return replace(member, executor=LimitedExecutor(node.clock, self.peaks[name], self._part))

    async def _until_it_fails(self, work):
        try:
            await work
        except OutOfMemory as error:
            self.error = self.error or error
            self.ends.append(str(error))

    def _work(self, name, node):
        work = super()._work(name, node)
        return self._until_it_fails(work) if name in self.nodes else work


SHAPES = {
    "one cluster": {"nodes": 3, "clusters": 1},
    "two clusters": {"nodes": 4, "clusters": 2},
    "a backup": {"nodes": 3, "clusters": 1, "backups": 1},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_node_without_the_memory_that_is_planned_ends_with_its_name_the_planned_bytes_and_a_remedy(shape):
    story = LimitedStory(0.8, delay=0.03, **shape)
    run_virtual(story.run())
    said, generation = str(story.error), story.every_generation[0]
    name, rank = re.match(r"(n\d): rank (\d)", said).groups()
    place = generation.place_of(next(each for each in generation.all_holders if each.name == name))
    assert int(rank) == place.stage
    planned = story.planned.bytes_of(generation, place, name)
    held = int(re.search(r"MemoryError\('(\d+) bytes'\)", said)[1])
    assert f"(planned: {planned / 2**20:,.1f} MiB, free on cpu: " in said and said.endswith(f"; {REMEDY}")
    assert 0.8 * planned < held <= 1.02 * planned


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_nodes_with_the_memory_that_is_planned_train_to_the_end_and_fill_most_of_it(shape):
    story = LimitedStory(1.02, delay=0.03, **shape)
    run_virtual(story.run())
    assert story.error is None and story.ends[-1].startswith("average")
    (generation,) = story.every_generation
    for holder in generation.all_holders:
        place = generation.place_of(holder)
        planned = story.planned.bytes_of(generation, place, holder.name)
        assert planned <= 1.15 * story.peaks[holder.name][generation.number, *place]


def test_a_new_backup_and_the_node_of_its_place_have_room_for_what_one_gives_the_other(monkeypatch):
    monkeypatch.setattr("pipelined.ravnest.averaging.state_transfer.CHUNK", 4096)
    story = LimitedStory(1.02, nodes=3, clusters=1, backups=1, delay=0.02)
    run_virtual(story.run(replaced(story)))
    assert story.error is None, story.error
    assert any(each.room for generation in story.every_generation for each in generation.backups)


def fails(*arguments, **more):
    raise MemoryError("forward")


def test_serve_ends_with_the_planned_bytes_and_flags_that_help(monkeypatch):
    """The processes of the program in one, over TCP, on a device that has no memory for a forward."""
    monkeypatch.setattr(Stage, "forward", fails)
    model = "--layers 2 --d-model 32 --heads 2 --seq 16 --batch 4 --microbatch 2 --average-every 2 --data LICENSE"
    node = "--data LICENSE --ram 64M --bandwidth 1gbit --flops 0"

    async def run():
        async with await open_endpoint("tcp://127.0.0.1:0") as endpoint:
            at, directory = (
                ["--coordinator", endpoint.address],
                asyncio.create_task(serve_directory(endpoint, RealClock())),
            )
            flags = parse(["train", *at, "--nodes", "1", "--clusters", "1", "--steps", "2", *model.split()])
            training = asyncio.create_task(train(flags, print))
            with pytest.raises(OutOfMemory) as caught:
                await serve(parse(["serve", *at, "--name", "attic", *node.split()]), print)
            read = EmbeddedDirectory(endpoint, endpoint.address, RealClock())
            task = RavnestTask.unpack((await read_task(read, endpoint.address, print)).value)
            found = Generation.unpack((await read.read(GENERATION)).entries[GENERATION].value)
            await cancel_and_wait(training, directory)
            return str(caught.value), planned_places(task, saves=False).bytes_of(found, ClusterPlace(0, 0), "attic")

    said, planned = on_loop(run())
    where = "attic: rank 0, step 0: forward of microbatch 0 through stage 0 (pipe 0) failed: MemoryError('forward')"
    assert said.startswith(f"{where} (planned: {planned / 2**20:,.1f} MiB, free on cpu: ")
    assert said.endswith(f"; {OUT_OF_MEMORY}")


def test_a_rank_of_gpt2_ends_with_its_planned_bytes_and_its_own_flags(monkeypatch):
    monkeypatch.setattr(assemble, "build_local", fails)
    with pytest.raises(OutOfMemory, match=r"rank0: rank 0 .stages 0.: building .* .planned: 0\.\d MiB, .*`clusters=`"):
        trained(["--clusters", 1, "--steps", 2], 1)


def test_memory_that_is_missing_outside_of_the_devices_work_is_named_so_too(monkeypatch):
    monkeypatch.setattr(cluster, "state_by_layer", fails)
    story = LimitedStory(1.02, nodes=2, clusters=1)
    run_virtual(story.run())
    assert re.match(r"n\d: rank \d \(stages \d\): training failed: MemoryError.* \(planned: ", str(story.error))
