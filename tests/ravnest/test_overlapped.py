"""Rounds beside training: the losses and the average of a plain loop, and the same bits from the recorded orders."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from pipelined.actors.device.executor import TorchExecutor
from pipelined.aio.clock import RealClock, run_virtual
from pipelined.errors import UsageError
from pipelined.random.keyed_random import KeyedRandom, drawing_from
from pipelined.ravnest.cluster_place import ClusterPlace
from pipelined.ravnest.replay import replay
from pipelined.ravnest.stage.orders import OrderDirectory, RunOrders, read_orders
from pipelined.ravnest.stage.saving import SaveSettings
from pipelined.state.stages.store import DiskStore, saved_stages
from pipelined.state.stages.whole_model import find_whole_model
from pipelined.state.tensor_specs import specs_of
from pipelined.training.digests import model_digest
from pipelined.training.optimizer import update
from pipelined.training.optimizer.exact import LambConfig
from tests.numerics.ravnest import training_of
from tests.numerics.test_ravnest_rounds import on_loop
from tests.numerics.trained import opened
from tests.ravnest.faults import Fault, Phase
from tests.ravnest.story import CASE, OPTIMIZER, Story, tell
from transports.local import world

OVERLAPPED = replace(training_of(replace(CASE, dropout=0.2), 17, OPTIMIZER, torch.float32, every=3), overlapped=True)
SLOW_S = 0.06
"""Delay of a line over which a round takes as long as some updates."""
TRAININGS = {
    "overlapped": OVERLAPPED,
    "weighed": replace(OVERLAPPED, by_microbatches=True),
    "blocking": replace(OVERLAPPED, overlapped=False),
    "newest": replace(OVERLAPPED, numerics=replace(OVERLAPPED.numerics, recompute_at_newest=True)),
    "lamb": replace(OVERLAPPED, optimizer_settings=LambConfig(**vars(OPTIMIZER))),
}


def recorded(path, training, *befalls, then=None, **story):
    """The story of a run, and the orders of its clusters, one after another."""
    told = Story(training=training, order_directory=OrderDirectory(path, "task"), **story)
    faults = [told.befall(*each[:1], **each[1]) for each in befalls]
    run_virtual(told.run(*faults, *([then(told)] if then else [])))
    return told, read_orders(path)


def replayed(training, orders):
    executor, losses = TorchExecutor("cpu", RealClock()), {}

    def on_step(cluster, report):
        losses[report.step, cluster] = report.loss

    try:
        return on_loop(replay([(training, each) for each in orders], executor, on_step)), losses
    finally:
        executor.close()


class Plain:
    """One cluster as one module and one loop over microbatches: updated after each, with differences added by hand.

    Norms give the statistics of each microbatch (momentum 1), which are averaged by hand at the end of its step.
    """

    def __init__(self, training, number, many):
        self.training, self.number, self.many, self.losses = training, number, many, {}
        self.module = training.model.build(range(training.model.layers), torch.float32, "cpu", seed=training.seed)
        self.tensors = {**dict(self.module.named_parameters()), **running(self.module)}
        self.optimizer = training.optimizer_settings.build(dict(self.module.named_parameters()))
        self.statistics = []
        for norm in self.module.modules():
            if isinstance(norm, nn.modules.batchnorm._BatchNorm):
                norm.momentum = 1.0

    def update(self, updates):
        own_step, microbatch = divmod(updates, self.training.microbatches)
        step = self.training.start + self.number + own_step * self.many
        if step >= self.training.steps:
            return
        held = {name: value.clone() for name, value in running(self.module).items()}
        with drawing_from(KeyedRandom(self.training.seed + self.training.start + self.number, own_step, microbatch)):
            logits = self.module(self.training.feed.inputs(step, microbatch))
        loss = self.training.model.loss(logits, self.training.feed.targets(step, microbatch))
        self.optimizer.zero_grad()
        loss.backward()
        update(self.optimizer, self.training.optimizer_settings.rate(step), 1.0)
        self.losses[step, self.number] = float(loss.detach())
        self.statistics.append({name: value.clone() for name, value in running(self.module).items()})
        for name, value in running(self.module).items():
            value.copy_(held[name])
        if microbatch == self.training.microbatches - 1:
            self.average_statistics()

    def average_statistics(self):
        for statistics in self.statistics:
            for name, value in running(self.module).items():
                value.mul_(0.9).add_(statistics[name], alpha=0.1)
        self.statistics = []

    def snapshot(self):
        return {name: tensor.detach().clone() for name, tensor in self.tensors.items()}


def running(module):
    """The running statistics of a module, by name."""
    return {name: buffer for name, buffer in module.named_buffers() if buffer.is_floating_point()}


def plain(training, orders):
    """What a plain loop has where each node adds when it did in the run.

    Returns: the losses by (step, cluster), the average, and by round the snapshots of the clusters.
    """
    rows, rounds, every = orders.generation.clusters, {}, training.every * training.microbatches
    clusters = [Plain(training, number, len(rows)) for number in range(len(rows))]
    names = {
        (number, stage): held_at(training, place) for number, row in enumerate(rows) for stage, place in enumerate(row)
    }
    done = len(training.spans_of(orders.generation, 0)) - 1
    for updates in range(1, len(training.own_steps(0, len(rows))) * training.microbatches + 1):
        for each in clusters:
            each.update(updates - 1)
        for (number, stage), order in orders.orders.items():
            for round_, after in order.added.items():
                if after == updates:
                    add(clusters[number], names[number, stage], rounds[round_], number)
        if updates % every == 0 and updates // every <= done:
            rounds[updates // every] = snapshots = [each.snapshot() for each in clusters]
            if not training.overlapped:
                for each in clusters:
                    put(each, {name: sum(held[name] for held in snapshots) / len(rows) for name in each.tensors})
    last = [each.snapshot() for each in clusters]
    final = {name: sum(each[name] for each in last) / len(rows) for name in last[0]}
    if training.by_microbatches:
        since = [len(each.losses) - done * training.every for each in clusters]
        weights = [each / sum(since) for each in since]
        final = {name: sum(w * each[name] for w, each in zip(weights, last, strict=True)) for name in last[0]}
    losses = {at: loss for each in clusters for at, loss in each.losses.items()}
    return losses, final, rounds


def held_at(training, place):
    """The names of the parameters and running statistics of a node."""
    layers = training.model.build(range(place.first, place.end), torch.float32, "meta", None)
    return [*dict(layers.named_parameters()), *running(layers)]


@torch.no_grad()
def add(cluster, names, snapshots, number):
    for name in names:
        average = sum(each[name] for each in snapshots) / len(snapshots)
        cluster.tensors[name] += average - snapshots[number][name]


@torch.no_grad()
def put(cluster, values):
    for name, value in values.items():
        cluster.tensors[name].copy_(value)


async def digest_of(training, orders, values):
    """The digest of the parameters among these values, as a run prints it."""
    generation = replace(
        orders.generation, clusters=[[orders.generation.clusters[0][0]._replace(end=training.model.layers)]]
    )
    async with opened(world(1)[0], training.job(generation, 0)) as trainer:
        for name, parameter in trainer.local.parameters.items():
            parameter.data.copy_(values[name])
        return await model_digest(trainer.context.actor.transport, trainer.local)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("kind", ["overlapped", "weighed", "newest", "lamb"])
def test_overlapped_rounds_have_the_losses_and_the_average_of_a_plain_loop(tmp_path, kind):
    """One microbatch is alive, so that each cluster is a plain loop; two whole rounds of two clusters, and the last."""
    training = TRAININGS[kind]
    told, (orders,) = recorded(tmp_path, training, delay=SLOW_S)
    losses, final, _ = plain(training, orders)
    assert {at: found for at, [found] in told.shown.items()} == losses
    assert told.ends == [f"average {on_loop(digest_of(training, orders, final))}"]
    added = [order.added for order in orders.orders.values()]
    assert all(list(each) == [1, 2] for each in added)
    late = {updates - number * training.every for each in added for number, updates in each.items()}
    assert late >= {2, 3}, "updates ran beside rounds; one waited, as its next snapshot was due"


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("kind", TRAININGS)
def test_the_replay_of_recorded_orders_has_the_same_bits(tmp_path, kind):
    training = TRAININGS[kind]
    told, orders = recorded(tmp_path, training, nodes=4, ahead=3, delay=SLOW_S)
    average, losses = replayed(training, orders)
    assert told.ends == [f"average {average}"]
    assert {at: found for at, [found] in told.shown.items()} == losses


def tell_and_replay(path, seed):
    told = tell(seed, training=OVERLAPPED, ahead=1 + seed % 3, order_directory=OrderDirectory(path, "task"))
    assert told.ends[-1] == f"average {replayed(OVERLAPPED, read_orders(path))[0]}", told.told


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("seed", range(3))
def test_after_random_faults_the_replay_has_the_same_bits(tmp_path, seed):
    tell_and_replay(tmp_path, seed)


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(3, 1003, 5))
def test_after_more_random_faults_the_replay_has_the_same_bits(tmp_path, first):
    for seed in range(first, first + 5):
        tell_and_replay(tmp_path / str(seed), seed)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("fault, phase", [(Fault.KILL, Phase.ROUND), (Fault.FREEZE, Phase.CONFIRMED)])
def test_the_replay_has_the_bits_of_the_clusters_that_came_to_the_end(tmp_path, fault, phase):
    told, orders = recorded(tmp_path, OVERLAPPED, (fault, {"phase": phase, "seconds": 0.5}), nodes=4, ahead=2)
    assert told.ends[-1] == f"average {replayed(OVERLAPPED, orders)[0]}"


@pytest.mark.parametrize("kind", ["overlapped", "blocking"])
def test_what_is_saved_is_the_average_of_each_round(tmp_path, kind):
    training, identity = TRAININGS[kind], CASE.model.identity()
    saving = SaveSettings(DiskStore(tmp_path / "saved", identity), 1, "run")
    told, (orders,) = recorded(tmp_path / "orders", training, saving=saving)
    saved = saved_stages(tmp_path / "saved")
    rows = orders.generation.clusters
    assert {(each.step, each.stage) for each in saved} == {(n, at) for n in (6, 12, 17) for at in range(len(rows[0]))}
    whole = find_whole_model([tmp_path / "saved"])
    assert told.ends == [f"average {on_loop(digest_of(training, orders, whole.values))}"]
    if kind == "overlapped":
        _, _, rounds = plain(training, orders)
        first = next(each for each in saved if each.step == 6)
        specs = {f"{name}/value": specs_of({"": value})[""] for name, value in rounds[1][0].items()}
        for key, block in saving.store.load(first, specs).items():
            name = key.removesuffix("/value")
            assert torch.equal(block.torch(), sum(each[name] for each in rounds[1]) / 2), name


def test_one_cluster_saves_at_the_end(tmp_path):
    training = replace(OVERLAPPED, steps=3)
    saving = SaveSettings(DiskStore(tmp_path, CASE.model.identity()), 10, "run")
    told = Story(2, training=training, clusters=1, saving=saving)
    run_virtual(told.run())
    whole = find_whole_model([tmp_path])
    assert whole.first_save.step == 3 and whole.first_save.stages == 2
    generation = told.view.generation
    orders = RunOrders("", generation, {})
    assert told.ends == [f"average {on_loop(digest_of(training, orders, whole.values))}"]


def test_orders_of_which_one_is_missing_or_wrong_are_refused(tmp_path):
    _, (orders,) = recorded(tmp_path, OVERLAPPED)
    order = orders.orders[0, 0]
    cut_short = {**orders.orders, ClusterPlace(0, 0): replace(order, instructions=order.instructions[:-1])}
    with pytest.raises(UsageError, match="the orders of cluster 0 do not train these steps"):
        replayed(OVERLAPPED, [replace(orders, orders=cut_short)])
    file = sorted(tmp_path.iterdir())[0]
    text = file.read_text()
    file.write_text(text.replace('"F0"', '"G0"'))
    with pytest.raises(UsageError, match="is no order of this release"):
        read_orders(tmp_path)
    file.unlink()
    with pytest.raises(UsageError, match=r"orders are missing .* \(nodes: n"):
        read_orders(tmp_path)
    with pytest.raises(UsageError, match="there are no orders in"):
        read_orders(tmp_path / "nowhere")
