"""The command line of Ravnest: what cannot be is refused in a line; what is trained is read back, and checked."""

import asyncio
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from apps.common.flags.command_flags import names_of
from apps.common.lm.data.text import read_text
from apps.ravnest.__main__ import COMMANDS, main, parse
from apps.ravnest.code import own_code, require_own_code
from apps.ravnest.commands import serve, train
from apps.ravnest.flags.config import MEANINGLESS, RavnestConfig, RavnestTask
from apps.ravnest.local import _serve_words, _train_words
from apps.ravnest.node_setup import resumed_run, saving_of
from apps.swarm.__main__ import COMMANDS as SWARM
from apps.swarm.config import SwarmTask, TrainingConfig, read_goal
from pipelined.aio.clock import RealClock
from pipelined.errors import UsageError
from pipelined.membership.directory import EmbeddedDirectory, serve_directory
from pipelined.membership.task_record import publish_task
from pipelined.ravnest.planning.pool import PoolNode
from pipelined.state.stages.versions import SavedStage
from tests.launching import launched
from transports import Nursery
from transports.rpc import open_endpoint

TASK = RavnestTask(RavnestConfig(layers=2, steps=7), 256, "digest of a text")


@pytest.mark.parametrize(
    "words, told",
    [
        ("serve", "say where the directory is"),
        ("serve --coordinator tcp://127.0.0.1:1 --ram 4X", "--ram '4X' is no quantity"),
        ("serve --coordinator tcp://127.0.0.1:1 --ram 0", "--ram must be at least 1 byte (it is 0); give"),
        ("serve --coordinator tcp://127.0.0.1:1 --bandwidth 200", "--bandwidth '200' is no quantity"),
        ("train --coordinator tcp://127.0.0.1:1 --nodes 0", "--nodes must be at least 1"),
        ("train --coordinator tcp://127.0.0.1:1 --batch 6", "let --microbatch divide --batch"),
        ("train --coordinator tcp://127.0.0.1:1 --preset none", "no preset is called 'none'"),
        ("local --clusters 0", "--clusters must be at least 1"),
        ("local --nodes 3 --backups 5", "no node is left to train (nodes: 3, --backups: 5); take fewer --backups"),
        ("serve --coordinator tcp://127.0.0.1:1 --reliability 1.0000001", "from 0 to 1 (it is 1.0000001)"),
        ("local --nodes 2 --clusters 3", "more clusters than nodes (--clusters: 3, nodes: 2)"),
        ("status --coordinator tcp://127.0.0.1:1 --web 65536", "--web must be a port from 0 to 65535 (it is 65536)"),
        ("local --optimizer sgd", "unknown --optimizer 'sgd'; known: adamw, lamb;"),
        ("local --nodes 2 --clusters 1 --ahead 5000", "--ahead must be at most 4096 (it is 5000); lower it"),
        ("local --lease 0.01", "--lease must be at least 0.5 s (it is 0.01): a process that computes renews"),
        (
            "local --clip 1",
            "--clip means nothing to python -m apps.ravnest: a step's norm is known when all",
        ),
        ("train --coordinator tcp://127.0.0.1:1 --clip=1", "as at a flush, and clusters train without one; lower --lr"),
        (
            "local --compress-sums bf16",
            "--compress-sums means nothing to python -m apps.ravnest: rounds send",
        ),
        ("local --preset digits --data LICENSE", "--preset digits learns from scikit-learn's digits; leave --data out"),
        ("plan --pool nowhere.csv --batch 6 --microbatch 4", "(batch: 6, microbatch: 4); let --microbatch divide"),
        ("serve --peers 2", "a node is a peer and holds layers; give --nodes (of local, train)"),
        ("train --peers 2", "a node is a peer and holds layers; give --nodes\n"),
        ("local --pool nowhere.csv", "cannot read the pool nowhere.csv"),
        ("local --metrics nowhere/file", "name another --metrics"),
        ("coordinator --journal nowhere/file", "name another --journal"),
        ("local --tokenizer words", "no tokenizer is called 'words'"),
        ("local --data /nowhere", "cannot read the text /nowhere"),
        ("local --resume", "--resume means nothing without --checkpoint; add it, or leave --resume out"),
        (
            "local --save-every 9",
            "--save-every 9 means nothing without --checkpoint; add it, or leave --save-every out",
        ),
        ("serve --coordinator tcp://127.0.0.1:1 --save-every 9", "--save-every 9 means nothing without --checkpoint"),
        ("local --prompt To", "--prompt 'To' means nothing without --sample; add it, or leave --prompt out"),
        ("export --checkpoint saved --to model --prompt To", "--prompt 'To' means nothing without --sample"),
        ("export --checkpoint saved --to model --context 9", "--context 9 means nothing without --sample"),
        (
            "train --coordinator tcp://127.0.0.1:1 --checkpoint saved",
            "--checkpoint saved means nothing without --resume; add it to go on from there; to save, give each `serve` "
            "a --checkpoint, or leave",
        ),
        ("local --save-every -1", "--save-every must be at least 0 (it is -1); 0 saves only at the end"),
        ("export --checkpoint saved", "add --to DIR, or --sample N"),
        ("export --checkpoint saved --sample 5 --prompt", "a sample needs at least one character"),
        ("replay --orders nowhere", "there are no orders in nowhere"),
    ],
)
def test_impossible_flags_are_refused_in_a_line(capsys, words, told):
    assert main([*words.split(), *[""] * words.endswith("--prompt")]) == 2
    complaint = capsys.readouterr().err
    assert told in complaint and "Traceback" not in complaint


def test_every_flag_that_means_nothing_is_one_of_the_swarm_and_none_of_ravnest():
    for command in ("train", "local"):
        ours = names_of(COMMANDS.flag_classes[command])
        assert not {*MEANINGLESS} & {*ours}
    theirs = {name for kind in SWARM.flag_classes.values() for name in names_of(kind)}
    assert {*MEANINGLESS} <= theirs


def test_what_is_trained_is_read_back():
    assert RavnestTask.unpack(TASK.pack()) == TASK
    other = RavnestTask(RavnestConfig(layers=3, steps=7), 256, "digest of a text")
    assert TASK.differences(other) == "layers: 2 here, 3 there"


def test_other_code_is_refused_with_both_digests():
    """A record of an earlier release has no digest of its code."""
    own = own_code()
    task, other = replace(TASK, code=own), replace(TASK, code="0" * 64)
    assert RavnestTask.unpack(task.pack()).code == own
    with pytest.raises(UsageError, match=rf"here: {own[:16]}, there: {'0' * 16}\); install that release"):
        require_own_code(other, own)
    earlier = json.loads(TASK.pack())
    del earlier["ravnest"]["code"]
    require_own_code(RavnestTask.unpack(json.dumps(earlier).encode()), own)


@pytest.mark.parametrize("words", ["serve", "train --layers 2 --steps 7 --data LICENSE"])
def test_a_directory_with_a_training_by_other_code_is_left(words):
    """Both write or read the record first; then the code is compared."""
    text = read_text([Path("LICENSE")], None)
    task = RavnestTask(TASK.settings, text.tokenizer.vocab_size, text.digest, "0" * 64)

    async def run():
        async with await open_endpoint("tcp://127.0.0.1:0") as endpoint, Nursery() as tasks:
            serving = tasks.create_task(serve_directory(endpoint, RealClock()))
            await publish_task(EmbeddedDirectory(endpoint, endpoint.address, RealClock()), task)
            command, *more = words.split()
            with pytest.raises(UsageError, match=f"here: .*, there: {'0' * 16}"):
                flags = parse([command, "--coordinator", endpoint.address, *more])
                await {"serve": serve, "train": train}[command](flags, print)
            serving.cancel()

    asyncio.run(run())


@pytest.mark.parametrize(
    "change",
    [
        lambda task: task.update(subject={**task["subject"], "steps": 0}),
        lambda task: task.update(subject={**task["subject"], "steps": True}),
        lambda task: task.update(subject={**task["subject"], "layers": 1 << 40}),
        lambda task: task.update(subject={**task["subject"], "unknown": 1}),
        lambda task: task.update(subject={**task["subject"], "dtype": "int8"}),
        lambda task: task.pop("text"),
        lambda task: task.update(vocabulary="many"),
        lambda task: task.update(subject=[]),
        lambda task: task.update(subject=None),
    ],
)
def test_a_record_of_another_release_is_refused(change):
    found = json.loads(TASK.pack())
    change(found["ravnest"])
    with pytest.raises(UsageError):
        RavnestTask.unpack(json.dumps(found).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"ravnest": 7}', b"\xff"])
def test_a_record_of_something_else_is_refused(data):
    with pytest.raises(UsageError, match="the directory has no training that this release knows"):
        RavnestTask.unpack(data)


def test_the_directory_of_another_program_is_refused_with_the_one_to_use():
    swarm = SwarmTask(TrainingConfig(), 256, "ab" * 32, 7)
    told = "this directory belongs to a swarm, not to Ravnest; use `apps.swarm`, or another coordinator"
    with pytest.raises(UsageError, match=f"^{told}$"):
        RavnestTask.unpack(swarm.pack())
    told = "this directory belongs to Ravnest, not to a swarm; use `apps.ravnest`, or another coordinator"
    for read in (SwarmTask.unpack, read_goal):
        with pytest.raises(UsageError, match=f"^{told}$"):
            read(TASK.pack())


def parse_node(words):
    return parse([words[0], "--coordinator", "tcp://127.0.0.1:1", *words[1:]])


def test_what_a_node_is_not_told_it_measures():
    flags = parse(["serve", "--coordinator", "tcp://127.0.0.1:1"])
    line = flags.rate, flags.delay_s
    assert (flags.ram_bytes, *line, flags.find_speed(), flags.reliability) == (None, None, None, None, 1.0)
    words = "--ram 4G --bandwidth 200mbit --delay 30ms --flops 40G --reliability 0.8"
    flags = parse(["serve", "--coordinator", "tcp://127.0.0.1:1", *words.split()])
    line = flags.rate, flags.delay_s
    assert (flags.ram_bytes, *line, flags.find_speed(), flags.reliability) == (4 << 30, 25e6, 0.03, 4e10, 0.8)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--bandwidth 0mbit", r"--bandwidth must be at least 1 byte \(it is 0mbit\); give"),
        ("--reliability 1.5", r"--reliability must be from 0 to 1 \(it is 1.5\)"),
        ("--delay 61s", r"--delay must be at most 60s \(it is 61s\)"),
        ("--delay 3", "--delay '3' is no quantity; .* ms, s, us"),
        ("--flops fast", "--flops 'fast' is no quantity"),
    ],
)
def test_a_line_or_speed_that_cannot_be_is_refused(words, told, capsys):
    assert main(["serve", "--coordinator", "tcp://127.0.0.1:1", *words.split()]) == 2
    assert re.search(told, capsys.readouterr().err)


def test_local_starts_the_nodes_of_a_pool_with_their_ram_and_lines():
    flags = parse(["local", "--steps", "7", "--layers", "2", "--clusters", "1", "--links", "delay=5ms,jitter=1ms"])
    pool = (PoolNode("attic", 1 << 20, 25e6, 4e10, 0.8), PoolNode("shed", 1 << 21, 12.5e6))
    attic, shed = _serve_words(flags, pool)
    assert attic[:2] == ["serve", "--name"] and attic[2] == "attic" and attic[-2:] == ["--flops", "4e+10"]
    assert attic[4] == "tcp://127.0.0.1:0?delay=5ms&jitter=1ms&line=200mbit"
    assert attic[attic.index("--reliability") + 1] == "0.8" and "--reliability" not in shed
    assert attic[attic.index("--delay") + 1] == "0.005s"
    assert shed[shed.index("--ram") + 1] == str(1 << 21) and shed[-2:] == ["--flops", "0"]
    assert all(None not in (told.rate, told.delay_s, told.find_speed()) for told in map(parse_node, (attic, shed)))
    words = _train_words(flags, 2)
    assert parse(["train", "--coordinator", "tcp://127.0.0.1:1", *words]).settings == flags.settings
    assert words[words.index("--nodes") + 1] == "2"


def test_links_with_a_line_are_refused_where_the_pool_has_the_lines(tmp_path, capsys):
    (tmp_path / "pool.csv").write_text("name,ram,bandwidth\nattic,1G,200mbit\n")
    assert main(["local", "--pool", str(tmp_path / "pool.csv"), "--links", "line=1mbit"]) == 2
    assert "?line= is given 2 times in one URL (values: 1mbit, 200mbit)" in capsys.readouterr().err


def test_the_nodes_of_a_pool_count_and_not_those_of_the_flag(tmp_path, capsys):
    (tmp_path / "pool.csv").write_text("name,ram,bandwidth\nattic,1G,200mbit\nshed,1G,100mbit\n")
    pool = ["local", "--pool", str(tmp_path / "pool.csv")]
    assert main([*pool, "--nodes", "9", "--clusters", "3"]) == 2
    assert "more clusters than nodes (--clusters: 3, nodes: 2)" in capsys.readouterr().err
    assert parse([*pool, "--nodes", "1", "--clusters", "2"]).nodes == 1


def test_a_pool_that_cannot_hold_the_model_is_refused_before_anything_is_started(tmp_path):
    (tmp_path / "pool.csv").write_text("name,ram,bandwidth\nattic,256M,200mbit\nshed,256M,100mbit\n")
    code = "import sys; from apps.ravnest.__main__ import main\n"
    code += "sys.addaudithook(lambda event, _: event == 'subprocess.Popen' and sys.exit('a process was started'))\n"
    code += "code = main(sys.argv[1:]); assert 'torch' not in sys.modules; sys.exit(code)"
    words = ["local", "--pool", str(tmp_path / "pool.csv"), "--preset", "gpt2", "--clusters", "1"]
    done = launched([sys.executable, "-c", code, *words], timeout=60)
    assert done.returncode == 2 and "cannot hold the model 1 times" in done.stderr, done.stderr
    assert "coordinator" not in done.stdout


@pytest.mark.parametrize(
    ("links", "rate", "delay"),
    [("", 1.25e8, 0.0), ("delay=30ms,rate=500mbit", 6.25e7, 0.03), ("rate=1gbit&line=8mbit", 1e6, 0.0)],
)
def test_the_nodes_of_local_share_the_free_memory_and_have_the_lines_of_the_links(monkeypatch, links, rate, delay):
    monkeypatch.setattr("apps.ravnest.local.free_memory", lambda: 1000)
    nodes = [parse_node(words) for words in _serve_words(parse(["local", "--nodes", "3", "--links", links]), ())]
    assert [(node.ram_bytes, node.rate, node.delay_s, node.find_speed()) for node in nodes] == [
        (333, rate, delay, 0.0)
    ] * 3


def test_a_node_saves_beside_stages_of_its_own_run_alone(tmp_path):
    saving = saving_of(tmp_path, 1, TASK, "this")
    assert saving.store.save(SavedStage(3, 0, 1, "this-7"), {"weight/value": np.zeros(2, np.float32)}) == ""
    assert saving_of(tmp_path, 1, TASK, "this") == saving
    with pytest.raises(UsageError, match=r"holds stages of another run \(steps 3: stage 0\)"):
        saving_of(tmp_path, 1, TASK, "other")


def test_a_run_is_resumed_by_the_name_under_which_it_saved(tmp_path):
    with pytest.raises(UsageError, match=r"no node saved in .*; leave --resume out"):
        resumed_run(tmp_path, TASK)
    store, weight = saving_of(tmp_path, 1, TASK, "this").store, {"weight/value": np.zeros(2, np.float32)}
    store.save(SavedStage(2, 0, 1, "swarm-ab"), weight)
    with pytest.raises(UsageError, match=r"holds stages of a swarm \(the latest: step 2\); leave --resume out"):
        resumed_run(tmp_path, TASK)
    store.save(SavedStage(3, 0, 1, "this-7"), {**weight, "weight/updates": np.array(3)})
    assert resumed_run(tmp_path, TASK) == "this"
    with pytest.raises(UsageError, match="holds stages of another model"):
        resumed_run(tmp_path, replace(TASK, vocabulary=300))
    with pytest.raises(UsageError, match="trained on other data"):
        resumed_run(tmp_path, replace(TASK, text="another digest"))
    with pytest.raises(UsageError, match=r"trained \(step 3: adamw, here: lamb\); give the --optimizer of that run"):
        resumed_run(tmp_path, trained_by("lamb"))
    words = _train_words(parse(["local", "--resume", "--checkpoint", str(tmp_path)]), 2)
    assert parse(["train", "--coordinator", "tcp://127.0.0.1:1", *words]).checkpoint == tmp_path


def trained_by(optimizer):
    return replace(TASK, settings=replace(TASK.settings, optimizer=optimizer))


@pytest.mark.parametrize("optimizer", get_args(RavnestConfig.__annotations__["optimizer"]))
def test_a_run_is_resumed_with_the_optimizer_that_trained_it(tmp_path, optimizer):
    """A save of an earlier release records none, and AdamW trained it."""
    state = {"weight/value": np.zeros(2, np.float32), "weight/updates": np.array(3)}
    saving = saving_of(tmp_path, 1, trained_by(optimizer), "this")
    saving.store.save(SavedStage(3, 0, 1, "this-7"), state)
    assert resumed_run(tmp_path, trained_by(optimizer)) == "this"
    (other,) = {"adamw", "lamb"} - {optimizer}
    with pytest.raises(UsageError, match=rf"step 3: {optimizer}, here: {other}"):
        resumed_run(tmp_path, trained_by(other))
    replace(saving.store, optimizer="").save(SavedStage(5, 0, 1, "this-7"), {**state, "weight/updates": np.array(5)})
    assert resumed_run(tmp_path, trained_by("adamw")) == "this"


def test_the_optimizer_is_a_part_of_what_is_trained():
    words = _train_words(parse(["local", "--optimizer", "lamb"]), 2)
    assert parse(["train", "--coordinator", "tcp://127.0.0.1:1", *words]).settings.optimizer == "lamb"
    assert RavnestTask.unpack(trained_by("lamb").pack()) == trained_by("lamb")
    assert TASK.differences(trained_by("lamb")) == "optimizer: adamw here, lamb there"
    earlier = json.loads(TASK.pack())
    del earlier["ravnest"]["subject"]["optimizer"]
    assert RavnestTask.unpack(json.dumps(earlier).encode()) == TASK


def test_a_run_is_resumed_by_the_name_of_a_stage_in_one_nodes_own_directory(tmp_path):
    state = {"weight/value": np.zeros(2, np.float32), "weight/updates": np.array(3)}
    saving_of(tmp_path, 1, TASK, "this").store.save(SavedStage(3, 1, 2, "this-7"), state)
    assert resumed_run(tmp_path, TASK) == "this"
    with pytest.raises(UsageError, match="trained on other data"):
        resumed_run(tmp_path, replace(TASK, text="another digest"))
