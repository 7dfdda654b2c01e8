"""The microbatch that docs/journey.md follows really goes that way, and its bytes are those on the wire."""

import re

import numpy as np
import pytest

from apps.gpt2.config import GPT2Flags
from apps.gpt2.job import resolve
from benchmarks.frame_files import Watch, files_of_a_step
from pipelined.programs.addresses import Activation
from pipelined.programs.costs import DEFAULT_COSTS
from pipelined.programs.prepare import prepare
from pipelined.programs.pricing.price import price
from pipelined.programs.proof.check import check
from pipelined.programs.recording import record
from pipelined.programs.text_drawing import timeline_grid
from pipelined.schedules import find
from tests.docs.hops import NOTED, called_in, column_of, hops_in, is_defined, missing
from tests.launching import ROOT
from transports.mpi.frames import MpiKind
from transports.rpc import Response, open_endpoint
from transports.wire.arrays import Block
from transports.wire.frames import encode_head

TEXT = (ROOT / "docs" / "journey.md").read_text()
JOB = resolve(GPT2Flags(), 4)
PLAN = JOB.plan


CALLED = f"""{NOTED}
from apps.gpt2.__main__ import main
threading.setprofile(note)
sys.setprofile(note)
code = main(sys.argv[1:])
sys.setprofile(None)
print(*called, sep="\\n")
sys.exit(code)
"""
"""A program that trains by its flags, and prints every function that was called, on any thread."""

OWN = f"""{NOTED}
import torch
import pipelined as pp
from torch.nn.functional import mse_loss
layers, batch = [lambda: torch.nn.Linear(4, 4)] * 2, (torch.ones(8, 4), torch.ones(8, 4))
settings = dict(loss=mse_loss, optimizer=torch.optim.SGD, transport="local", depth=2, microbatches=2)
threading.setprofile(note)
sys.setprofile(note)
if sys.argv[1] == "1":
    pp.train(layers, [batch], **settings)
else:
    with pp.Trainer(layers, example=batch[0][:4], **settings) as trainer:
        trainer.step(batch)
sys.setprofile(None)
print(*called, sep="\\n")
"""
"""A program that trains a step by `pp.train` (1) or `pp.Trainer` (2), and prints as the one above."""


def program():
    recorded = record(find(PLAN.schedule), PLAN.shape)
    check(recorded)
    return recorded


def test_the_plan_is_the_one_described():
    assert (PLAN.schedule, PLAN.depth, PLAN.width, PLAN.batch) == ("chimera", 4, 1, 32)
    assert (PLAN.microbatch_size, PLAN.microbatches, JOB.sequence) == (8, 4, 64)
    assert PLAN.stage_map.microbatches == ((0, 1), (2, 3))


def test_the_grid_is_the_one_drawn():
    assert f"```text\n{timeline_grid(price(program(), DEFAULT_COSTS))}\n```" in TEXT


def test_it_visits_the_ranks_named():
    assert [PLAN.holder(0, 1, stage) for stage in range(4)] == [3, 2, 1, 0]
    told = [repr(instruction) for instruction in program().workers[3][:2]]
    assert told == ["0F2p1", "0F3p1"]
    assert all(f"`{name}`" in TEXT for name in (*told, "3B2p1", "0B2p1"))


def test_the_bytes_shown_are_those_on_the_wire():
    key = Activation(step=7, pipe=1, stage=1, microbatch=2).key
    assert str(key).replace("'", '"') in TEXT
    block = Block.of(np.zeros((PLAN.rows, JOB.sequence, JOB.model.d_model), np.float32))
    head = encode_head(MpiKind.SHARED, key, [block])
    assert "".join(re.findall(r"^[0-9a-f]{2}(?: +[0-9a-f]{2})+$", TEXT, re.MULTILINE)).replace(" ", "") == head.hex()
    assert f"{len(head)} bytes: a preamble of 20" in TEXT and f"{block.nbytes:,} bytes" in TEXT


def test_only_the_sum_of_stage_3_starts_early():
    *computed, last = prepare(PLAN, 3).instructions
    assert [i.stage for i in computed if not i.computes] == [3] and repr(last) == "0S"


@pytest.mark.parametrize("hop", sorted(set(hops_in(TEXT))))
def test_every_hop_is_a_function_of_its_file(hop):
    assert is_defined(hop)


BYTES = [
    "transports/rpc/tcp/scheduler.py:send",
    "transports/stream/connection.py:write",
    "transports/stream/connection.py:_read",
    "transports/rpc/tcp/reassembly.py:on_frame",
]
"""The hops that only a request between sockets takes."""
MODEL = "--transport local --layers 4 --d-model 16 --heads 2 --seq 8 --batch 8 --sample 0"
CHIMERA = "--schedule chimera --depth 4 --width 1 --steps 1"
RAVNEST = "--schedule ravnest --clusters 2 --microbatch 4 --average-every 2 --steps 4"


def test_one_step_in_one_process_calls_every_hop_listed(tmp_path):
    assert not missing(hops_in_one_process(), called_by(CHIMERA, tmp_path))


@pytest.mark.parametrize("column", [1, 2])
def test_a_program_of_its_own_calls_every_hop_of_its_column(column):
    table = TEXT.partition("In [a program of your own]")[2].partition("In a [swarm]")[0]
    hops = column_of(table, column)
    assert len(hops) > 4 and not missing(hops, called_in(OWN, str(column)))


def test_clusters_in_one_process_call_every_hop_of_a_microbatch_and_of_a_round(tmp_path):
    _, microbatch, around = TEXT.partition("In [Ravnest](ravnest.md)")[2].split("| hop | function |")
    hops = [hops_in(table) for table in (microbatch, around)]
    assert len(hops[0]) > 20 and len(hops[1]) > 10
    assert not missing([*hops[0], *hops[1]], called_by(RAVNEST, tmp_path))


def test_a_quiet_step_of_a_swarm_calls_every_hop_of_a_microbatch_and_of_the_commit():
    """All but its start, sockets, a ban, and torch: the devices of this swarm have a price and compute nothing."""
    hops = hops_in(TEXT.partition("In a [swarm]")[2].partition("In [Ravnest]")[0])
    called = [f"/{path}:{name.rpartition('.')[2]}" for path, names in files_of_a_step().items() for name in names]
    assert len(hops) > 25 and missing(hops, called) == [
        "apps/swarm/commands.py:train",
        "pipelined/swarm/process/roles.py:train",
        "pipelined/swarm/process/trainer_process.py:run_trainer",
        *BYTES,
        "pipelined/swarm/stages/torch_stage.py:forward",
        "pipelined/swarm/trainer/peer_pool.py:_ban",
    ]


async def test_a_request_between_sockets_calls_every_hop_of_its_bytes():
    watch = Watch()
    async with await open_endpoint("tcp://127.0.0.1:0") as here, await open_endpoint("tcp://127.0.0.1:0") as there:
        there.handle("pass", reply, max_bytes=1 << 20)
        with watch.on():
            await here.request(there.address, "pass", np.zeros(1 << 20, np.uint8))
    called = [f"/{path}:{name.rpartition('.')[2]}" for path, names in watch.files.items() for name in names]
    assert not missing(BYTES, called)


async def reply(request):
    return Response()


def called_by(flags, tmp_path):
    """The functions that a program with these flags calls, with their files."""
    text = tmp_path / "text"
    text.write_text("To be, or not to be, that is the question. " * 100)
    return called_in(CALLED, *MODEL.split(), *flags.split(), "--data", str(text))


def hops_in_one_process():
    """The functions of the first table's last column; where it says "the same", those of the first."""
    table = TEXT.partition("## The hops")[2].partition("In [a program of your own]")[0]
    rows = [
        [cell.strip(" `") for cell in line.split("|")[2:5]]
        for line in table.splitlines()
        if line.startswith("|") and ".py:" in line
    ]
    functions = [mpi if local == "the same" else local for mpi, _, local in rows]
    return [function for function in functions if function]
