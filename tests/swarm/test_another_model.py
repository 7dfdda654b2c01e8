"""A member with another model is refused with both digests: on the virtual network, and as a user sees it."""

import asyncio
import sys
from contextlib import suppress
from dataclasses import replace

import pytest

from apps.common.lm.data.text import read_text
from apps.swarm.config import TrainingConfig
from apps.swarm.data import task_and_feed
from pipelined.aio.clock import RealClock
from pipelined.membership.directory import EmbeddedDirectory, serve_directory
from pipelined.membership.task_record import TASK
from pipelined.swarm.records.steps import HEAD, Head
from pipelined.swarm.rules import OtherModel
from tests.launching import ROOT
from tests.swarm.virtual_swarm import VirtualSwarm
from transports.rpc import open_endpoint

THEIRS = "0123456789abcdef"


@pytest.mark.virtual
@pytest.mark.parametrize("kind", ["peer", "trainer"])
async def test_another_model_is_refused_with_both_digests_and_training_goes_on(kind):
    swarm = VirtualSwarm(stages=1, batch=6)
    swarm.peer("p0")
    swarm.trainer("t0", steps=4)
    await swarm.until(lambda: len(swarm.heads) == 2)
    theirs, swarm.rules = swarm.rules.digest, replace(swarm.rules, model="another")
    swarm.peer("stranger") if kind == "peer" else swarm.trainer("stranger", steps=4)
    refused = swarm.tasks.pop("stranger")
    getattr(swarm, f"{kind}s").pop("stranger")
    with pytest.raises(OtherModel, match=f"here: {swarm.rules.digest}, there: {theirs}"):
        await refused
    await swarm.finish(within=10)
    assert [head.step for head in swarm.heads] == [0, 1, 2, 3, 4]
    await swarm.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("command", ["serve", pytest.param("train", marks=pytest.mark.full)])
def test_a_program_with_other_code_ends_with_both_digests_and_code_2(command):
    """What stands in the directory is the same subject, trained by another release."""

    async def refused(address):
        words = [sys.executable, "-m", "apps.swarm", command, "--coordinator", address]
        child = await asyncio.create_subprocess_exec(*words, cwd=ROOT, stderr=asyncio.subprocess.PIPE)
        try:
            _, told = await child.communicate()
        finally:
            with suppress(ProcessLookupError):
                child.kill()
        return child.returncode, told.decode()

    async def said():
        text = read_text((), "bytes")
        async with await open_endpoint("tcp://127.0.0.1:0") as end:
            serving = asyncio.ensure_future(serve_directory(end, RealClock()))
            directory = EmbeddedDirectory(end, end.address, RealClock())
            told, _ = task_and_feed(TrainingConfig(), text, text.tokenizer.vocab_size)
            await directory.transact({}, {TASK: told.pack(), HEAD: Head(3, THEIRS).pack()})
            outcome = await refused(end.address)
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            return outcome

    code, told = asyncio.run(said())
    assert code == 2 and "another model, code or tokenizer" in told and f"there: {THEIRS}" in told, told
    assert "Traceback" not in told
