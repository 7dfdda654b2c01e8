"""Saves that are written while training continues hold the state at which they were begun."""

import threading
from dataclasses import replace

import pytest

from pipelined.errors import AgreedError, UsageError
from pipelined.state.checkpoints import checkpoint
from pipelined.state.checkpoints.checkpoint import open_checkpoint
from pipelined.state.checkpoints.saving import CheckpointSaver
from pipelined.state.checkpoints.trainer_state import SaveTarget, load, save
from pipelined.training.segments.flushed_step import FlushedStep
from tests.numerics.plain import Case
from tests.numerics.trained import on_every_rank, on_ranks

CASE = Case("chimera", 2, 2, 4, dropout=0.1)


def saved(path):
    """Every tensor of a checkpoint by its hash, and what else it knows."""
    found = open_checkpoint(path)
    return sorted(map(str, (shard["tensors"] for shard in found.shards))), dict(found.meta.scalars), found.meta.step


def test_it_is_the_checkpoint_that_a_pause_writes(tmp_path):
    async def train(trainer, transport):
        async with CheckpointSaver(trainer) as saver:
            for step in range(4):
                await trainer.step(step)
                if step in (0, 1):
                    await save(trainer, step + 1, SaveTarget(tmp_path / "paused", 9, claimed=True))
                    await saver.start_save(step + 1, SaveTarget(tmp_path / "beside", 9, claimed=True))

    on_every_rank(CASE, train)
    for name in ("step-00000001", "step-00000002"):
        assert saved(tmp_path / "beside" / name) == saved(tmp_path / "paused" / name)


def test_a_checkpoint_has_the_seed_of_the_job_not_that_of_its_dropout(tmp_path):
    async def write(trainer):
        await save(trainer, 0, SaveTarget(tmp_path, 1))

    job = Case("gpipe", 1, 1, 1, layers=1).job()
    on_ranks(replace(job, seed=3, dropout_seed=4), write)
    assert saved(tmp_path)[1]["seed"] == 3


def test_steps_are_trained_while_a_disk_is_slow(tmp_path, monkeypatch):
    may_write, write = threading.Event(), checkpoint.write_shard

    def slow(*args, **more):
        assert may_write.wait(60)
        return write(*args, **more)

    monkeypatch.setattr(checkpoint, "write_shard", slow)

    async def train(trainer, transport):
        async with CheckpointSaver(trainer) as saver:
            await trainer.step(0)
            await saver.start_save(1, SaveTarget(tmp_path, 9, claimed=True))
            losses = [(await trainer.step(step)).loss for step in (1, 2)]
            nothing = checkpoint.latest(tmp_path) is None
            may_write.set()
            await saver.finish()
            assert await load(trainer, checkpoint.latest(tmp_path)) == 1
            return nothing, losses == [(await trainer.step(step)).loss for step in (1, 2)]

    assert on_every_rank(CASE, train) == [(True, True)] * CASE.plan.world_size


def test_a_failed_save_is_raised_on_every_rank_when_the_next_begins(tmp_path):
    full = tmp_path / "full"
    full.write_text("no directory")

    async def train(trainer, transport):
        async with CheckpointSaver(trainer) as saver:
            await saver.start_save(1, SaveTarget(full, 9))
            await trainer.step(0)
            with pytest.raises(UsageError, match=r"cannot write|Not a directory"):
                await saver.start_save(2, SaveTarget(full, 9))
            await saver.finish()
            return "told"

    assert on_every_rank(CASE, train) == ["told"] * CASE.plan.world_size


def test_a_save_waits_for_the_one_under_way(tmp_path, monkeypatch):
    begun, commit = [], checkpoint.commit

    def noting(directory, meta, *rest):
        begun.append((meta.step, checkpoint.latest(tmp_path)))
        return commit(directory, meta, *rest)

    monkeypatch.setattr(checkpoint, "commit", noting)

    async def train(trainer, transport):
        async with CheckpointSaver(trainer) as saver:
            await saver.start_save(1, SaveTarget(tmp_path, 9))
            return await saver.save(2, SaveTarget(tmp_path, 9))

    first, *others = on_every_rank(CASE, train)
    assert first == tmp_path / "step-00000002" and set(others) == {tmp_path}
    assert begun == [(1, None), (2, tmp_path / "step-00000001")]


@pytest.mark.parametrize(("error", "is_kept"), [(AgreedError("diverged"), True), (RuntimeError("a bug"), False)])
def test_a_save_under_way_is_finished_if_all_ranks_end_together_and_else_cancelled(tmp_path, error, is_kept):
    async def train(trainer, transport):
        try:
            async with CheckpointSaver(trainer) as saver:
                await saver.start_save(1, SaveTarget(tmp_path, 9, claimed=True))
                raise error
        except type(error) as raised:
            return raised is error

    assert all(on_every_rank(CASE, train))
    assert (checkpoint.latest(tmp_path) is not None) == is_kept


def test_leaving_the_block_finishes_a_save_or_raises_its_error(tmp_path):
    full = tmp_path / "full"
    full.write_text("no directory")

    async def train(trainer, transport):
        async with CheckpointSaver(trainer) as saver:
            await saver.start_save(1, SaveTarget(tmp_path / "saved", 9, claimed=True))
        with pytest.raises(UsageError, match=r"cannot write|Not a directory"):
            async with CheckpointSaver(trainer) as saver:
                await saver.start_save(1, SaveTarget(full, 9))

    on_every_rank(CASE, train)
    assert checkpoint.latest(tmp_path / "saved") is not None


@pytest.mark.parametrize("saves", [True, False])
def test_the_bytes_of_a_step_are_those_without_the_save_beside_it(saves, tmp_path, monkeypatch):
    """A step ends only after the save, so that all that ranks agree on for it is sent inside of the step."""
    wait_for_sums, savers = FlushedStep.wait_for_sums, {}

    async def late(self, number):
        if saver := savers.get(self.context.actor.rank):
            before = self.context.actor.transport.traffic.object_bytes_sent
            await saver.finish()
            assert self.context.actor.transport.traffic.object_bytes_sent > before
        return await wait_for_sums(self, number)

    monkeypatch.setattr(FlushedStep, "wait_for_sums", late)

    async def rank(trainer):
        async with CheckpointSaver(trainer) as saver:
            sent = [(await trainer.step(0)).nbytes]
            if saves:
                await saver.start_save(1, SaveTarget(tmp_path, 1))
                savers[trainer.context.actor.rank] = saver
            return [*sent, (await trainer.step(1)).nbytes]

    for first, second in on_ranks(Case("one_f_one_b", 2, 1, 2, layers=1).job(), rank):
        assert first == second > 0
