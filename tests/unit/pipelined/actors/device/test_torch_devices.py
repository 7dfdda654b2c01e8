"""A rank computes on a GPU of its own, unless ranks may share one; a device that is not there is refused."""

import warnings

import pytest
import torch

from pipelined.actors.device.torch_devices import check_device, device_of_rank
from pipelined.errors import UsageError, as_flags
from tests.conformance.worlds import local_world

TOO_OLD = "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver."


def gpus(monkeypatch, number):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
    monkeypatch.delenv("SLURM_GPUS_PER_TASK", raising=False)


def devices(nodes, share=False):
    return [device_of_rank(end, share=share) for end in local_world(len(nodes), nodes)]


def test_each_rank_of_a_machine_has_its_own_gpu(monkeypatch):
    gpus(monkeypatch, 2)
    assert devices((0, 1, 0, 1)) == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    gpus(monkeypatch, 2)
    with pytest.raises(UsageError) as caught:
        devices((0,) * 4)
    fact = "fewer GPUs than ranks on this node (GPUs: 2, ranks: 4)"
    assert as_flags(str(caught.value)) == f"{fact}; start fewer ranks or pass --share-devices"


def test_ranks_that_may_share_take_gpus_in_turn(monkeypatch):
    gpus(monkeypatch, 2)
    assert devices((0,) * 4, share=True) == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]


def test_ranks_with_gpus_of_their_own_take_these(monkeypatch):
    gpus(monkeypatch, 1)
    monkeypatch.setenv("SLURM_GPUS_PER_TASK", "1")
    assert devices((0,) * 4) == ["cuda:0"] * 4


def unusable():
    warnings.warn(f"CUDA initialization: {TOO_OLD} (Triggered internally)\nsecond line", stacklevel=1)
    return False


def test_a_gpu_that_torch_cannot_use_is_told_once_a_machine_with_the_reason(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", unusable)
    assert devices((0, 0, 2)) == ["cpu"] * 3
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and all(line.startswith("warning: a GPU seems to be here, but") for line in lines)
    assert TOO_OLD in lines[0]


def test_where_there_is_no_gpu_nothing_is_told(monkeypatch, capsys):
    gpus(monkeypatch, 0)
    assert devices((0, 0)) == ["cpu"] * 2
    assert capsys.readouterr().err == ""


def test_a_device_that_is_not_here_is_refused_with_those_that_are():
    check_device("cpu")
    for name in ("abacus", "cuda:99"):
        with pytest.raises(UsageError, match=rf"no device here is called '{name}' \(.*\); take --device cpu"):
            check_device(name)


def test_a_gpu_that_torch_cannot_use_is_refused_with_the_reason(monkeypatch):
    def too_old(*shape, device):
        raise RuntimeError(TOO_OLD)

    monkeypatch.setattr(torch, "empty", too_old)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(unusable()))
    with pytest.raises(UsageError) as caught:
        check_device("cuda")
    assert str(caught.value) == f"no device here is called 'cuda' ({TOO_OLD}); take --device cpu"
