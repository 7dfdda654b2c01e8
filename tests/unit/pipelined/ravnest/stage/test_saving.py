"""The rounds that a node saves: every so many, and the last one."""

import asyncio

import numpy as np
import pytest

from pipelined.ravnest.stage.saving import SaveSettings, StageSaver
from pipelined.state.stages.store import DiskStore
from pipelined.state.stages.versions import SavedStage
from transports import Nursery

ROUNDS = [2, 4, 6, 8, 9]
"""The steps that are completed before each round."""


class Held:
    """A stage of one number."""

    async def copy_state(self):
        return {"a/value": np.zeros(1, np.float32)}


@pytest.mark.parametrize(("every", "saved"), [(1, ROUNDS), (2, [4, 8, 9]), (0, [9])])
def test_the_last_round_is_saved_and_with_0_it_alone(tmp_path, every, saved):
    store = DiskStore(tmp_path, {}, keep=len(ROUNDS))

    async def run():
        async with Nursery() as tasks:
            saving, at = SaveSettings(store, every, "run"), SavedStage(0, 0, 1, "run-1")
            saver = StageSaver(tasks, saving, at, steps=ROUNDS, stage=Held(), is_writer=lambda: True)
            for number in range(1, len(ROUNDS) + 1):
                await saver.save_own(number)

    asyncio.run(run())
    assert sorted(stage.step for stage in store.saved_stages()) == saved
