"""A node of Ravnest knows the bytes that it was planned to hold: those of the plan, and what to do with real flags."""

import re
from dataclasses import fields, replace

import pytest

from apps.common.flags.command_flags import names_of
from apps.gpt2.config import GPT2Flags
from apps.gpt2.ravnest import run as ranks
from apps.ravnest import commands
from apps.ravnest.flags.commands import Local, Serve, Train
from apps.ravnest.flags.config import RavnestConfig, RavnestTask
from apps.ravnest.flags.groups import FormingFlags
from apps.ravnest.node_setup import planned_places
from apps.ravnest.plan import pool_request
from pipelined.errors import as_flags
from pipelined.ravnest.cluster_place import ClusterPlace
from pipelined.ravnest.planning.backups import plan_with_backups
from pipelined.ravnest.planning.pool import PoolNode
from pipelined.ravnest.records.generation import Generation
from pipelined.ravnest.records.nodes import NodeRecord
from pipelined.schedules import AHEAD
from pipelined.state.stages.versions import Version

RAM = 1 << 26


@pytest.mark.parametrize("saves", [False, True])
@pytest.mark.parametrize("average", ["overlapped", "blocking"])
@pytest.mark.parametrize(("clusters", "backups"), [(1, 0), (1, 2), (2, 0), (2, 1)])
def test_what_a_node_counts_is_what_the_plan_says(clusters, backups, average, saves):
    task = RavnestTask(RavnestConfig(layers=6, average=average, dtype="bfloat16"), 256, "")
    nodes = [NodeRecord(f"n{n}", f"at {n}", 1, RAM, 1e6, 1e9 * (1 + n), saves=saves) for n in range(6)]
    forming = FormingFlags(clusters, ahead=5, backups=backups)
    request = pool_request(task.settings, task.settings.model(256), forming, saves=saves)
    pool = tuple(PoolNode(node.name, node.ram, node.bandwidth, node.flops) for node in nodes)
    plan = plan_with_backups(replace(request, pool=pool))
    formed, planned = Generation.of(1, plan, nodes, Version(0, "")), planned_places(task, saves=saves)
    for number, cluster in enumerate(plan.clusters):
        for stage, place in enumerate(cluster.stages):
            for node in filter(None, [place.node, place.backup]):
                assert planned.bytes_of(formed, ClusterPlace(number, stage), node.name) == place.bytes


@pytest.mark.parametrize(
    ("remedy", "flags"),
    [
        (commands.OUT_OF_MEMORY, {*names_of(Train), *names_of(Serve), *names_of(Local)}),
        (ranks.OUT_OF_MEMORY, {*(each.name for each in fields(GPT2Flags)), AHEAD.name}),
    ],
)
def test_the_remedy_names_flags_that_the_programs_have(remedy, flags):
    named = {name.replace("-", "_") for name in re.findall(r"--([a-z-]+)", as_flags(remedy))}
    assert len(named) > 2 and named <= flags
