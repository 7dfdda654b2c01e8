"""A program runs its ranks as its flags say."""

from types import SimpleNamespace

import pytest
import torch

from apps.common.run.program import run_program
from pipelined.actors.device.executor import TorchExecutor
from pipelined.process.run import run


@pytest.mark.parametrize(
    ("share", "code", "used"), [(False, 2, []), (True, 0, ["cuda:0", "cuda:0", "cuda:1", "cuda:1"])]
)
def test_ranks_share_gpus_only_if_the_flags_say_so(share, code, used, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    flags, found = SimpleNamespace(log="warning", transport="local", share_devices=share), []

    def work(flags, launch):
        async def rank(transport):
            executor = TorchExecutor.of_rank(transport, ranks_sharing=4, share_devices=launch.share_devices)
            found.append(executor.device)
            executor.close()
            return 0

        return run(launch, 4, rank, command="program")

    assert run_program("program", lambda: flags, work) == code
    assert sorted(found) == used
    said = capsys.readouterr().err
    assert ("program: error: fewer GPUs than ranks on this node (GPUs: 2, ranks: 4);" in said) is not share
