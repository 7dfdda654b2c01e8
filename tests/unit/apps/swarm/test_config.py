"""What a swarm is told: refused where it cannot be, kept in the directory as it was, and read there with suspicion."""

import json

import pytest

from apps.swarm.__main__ import main
from apps.swarm.config import SwarmTask, TrainingConfig, read_goal
from pipelined.api.swarm.training import UserTask
from pipelined.errors import UsageError
from pipelined.swarm.status.swarm_status import Goal

TOLD = SwarmTask(TrainingConfig(preset="tiny", layers=2, stages=2, lr=1e-3), 256, "ab" * 32, 7)


def test_what_is_trained_comes_back_as_it_was_kept():
    assert SwarmTask.unpack(TOLD.pack()) == TOLD


@pytest.mark.parametrize(
    "change", [{"stages": "2"}, {"layers": 2.5}, {"stages": 0}, {"lease": -1.0}, {"nobody": 1}, {"microbatch": 5}]
)
def test_what_no_release_wrote_is_refused(change):
    told = json.loads(TOLD.pack())
    told["subject"] |= change
    with pytest.raises(UsageError):
        SwarmTask.unpack(json.dumps(told).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"subject": []}', b"\xff", b"[" * 100_000])
def test_what_is_no_subject_is_refused(data):
    with pytest.raises(UsageError):
        SwarmTask.unpack(data)


def test_differences_name_both_sides():
    theirs = SwarmTask(TrainingConfig(preset="tiny", layers=2, stages=3, lr=1e-3), 256, "cd" * 32, 7)
    assert TOLD.differences(theirs) == f"stages: 2 here, 3 there, text: {'ab' * 8} here, {'cd' * 8} there"


def test_a_peer_serves_a_stage_that_there_is():
    for stage in (None, 0, 2):
        TrainingConfig(stages=3).check_stage(stage)
    for stage in (-1, 3):
        with pytest.raises(UsageError, match=rf"--stage {stage}, stages: 3\); take one from 0 to 2"):
            TrainingConfig(stages=3).check_stage(stage)


@pytest.mark.parametrize(
    "words, told",
    [
        ("serve", "say where the directory is"),
        ("serve --coordinator tcp://127.0.0.1", "--coordinator tcp://127.0.0.1 is no address; write tcp://HOST:PORT"),
        ("serve --coordinator tcp://127.0.0.1:99999", "tcp://127.0.0.1:99999 has no port from 1 to 65535"),
        ("serve --coordinator tcp://127.0.0.1:0", "tcp://127.0.0.1:0 has no port from 1 to 65535"),
        ("serve --coordinator http://a:1", "unknown directory 'http://a:1'; known: etcd://, tcp://"),
        ("export --to model --coordinator tcp://127.0.0.1", "is no address; write tcp://HOST:PORT"),
        ("status --coordinator tcp://127.0.0.1:1 --directory etcd://127.0.0.1:2", "leave one of the two out"),
        ("serve --coordinator tcp://127.0.0.1:1 --checkpoint LICENSE", "is a file; give --checkpoint a directory"),
        ("train --coordinator tcp://127.0.0.1:1 --metrics nowhere/file", "name another --metrics"),
        ("coordinator --journal nowhere/file", "name another --journal"),
        ("train --coordinator tcp://127.0.0.1:1 --compress zip", "--compress: unknown codec 'zip'"),
        ("train --coordinator tcp://127.0.0.1:1 --compress-sums zip", "--compress-sums: unknown codec 'zip'"),
        ("train --coordinator tcp://127.0.0.1:1 --slots 0", "--slots must be at least 1"),
        ("train --coordinator tcp://127.0.0.1:1 --clip -1", "--clip must be at least 0"),
        ("local --trainers 0", "--trainers must be at least 1"),
        ("export --sample 1 --checkpoint saved --context 0", "--context must be at least 1"),
        ("train --coordinator tcp://127.0.0.1:1 --lease 0.1", "--lease must be at least 0.5 s (it is 0.1)"),
        ("train --coordinator tcp://127.0.0.1:1 --lease 4000", "--lease must be at most 3600 s (it is 4000)"),
        ("local --preset nonsense", "no preset is called 'nonsense'"),
        ("local --layers 2 --stages 5", "(stages: 5, layers that can be cut apart: 4)"),
        (
            "train --coordinator tcp://127.0.0.1:1 --stages 9",
            "(stages: 9, layers that can be cut apart: 6)",
        ),
        (
            "local --links nonsense",
            "unknown option in the tcp:// URL (got: nonsense; known: listen, delay, jitter, rate",
        ),
        ("local --links delay=50", "--links delay=50: ?delay= takes a number and one of the units"),
        ("local --peers 1", "every stage needs a peer"),
        ("train --coordinator tcp://127.0.0.1:1 --batch 30", "let --microbatch divide --batch"),
        ("coordinator --listen tcp://0.0.0.0:0", "name the one by which"),
        ("coordinator --listen nonsense", "unknown endpoint"),
        ("serve --coordinator tcp://127.0.0.1:1 --stage -1", "--stage must be at least 0 (it is -1)"),
        ("serve --coordinator 10.0.0.1:4700", "unknown directory '10.0.0.1:4700'; write tcp://10.0.0.1:4700"),
        ("local --tied --preset gpt2-tiny --stages 3", "--tied needs one stage (--stages 3); give --stages 1, or"),
        ("local --factor 4", "--factor 4 means nothing without --squeeze; add it, or leave --factor out"),
        ("local --factor 7 --preset gpt2-tiny --peers 9", "--factor 7 means nothing without --squeeze"),
        ("local --factor 7 --squeeze maxout", "take a factor of 2 or 4"),
        ("export --to model", "say what to export"),
        ("export --to model --checkpoint saved --coordinator tcp://127.0.0.1:1", "leave one of them out"),
        ("export --checkpoint saved", "there is nothing to do"),
        ("export --checkpoint nowhere --to model --data LICENSE", "there is no folder nowhere"),
        ("local --sample -1", "--sample must be at least 0"),
        ("local --eval-every -1", "--eval-every must be at least 0"),
    ],
)
def test_what_cannot_work_is_reported_with_its_remedy(words, told, capsys):
    assert main(words.split()) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert told in said and "dummy" not in said


def test_the_goal_of_a_user_s_own_model_is_read_from_its_record():
    task = UserTask(depth=2, microbatches=4, steps=100, rows=8, x=("float32", (8, 3)), y=("int64", (8,)))
    assert read_goal(task.pack()) == Goal(steps=100, tokens=8, held_out=0)
    assert read_goal(TOLD.pack()) == Goal(200, 256, 7)


MANY = b"1" + b"0" * 400


@pytest.mark.parametrize(
    "data",
    [
        b"[1",
        b"[" * 200_000,
        b'{"steps": Infinity, "rows": 1}',
        b'{"steps": -1, "rows": 1}',
        b'{"steps": 1, "rows": ' + MANY + b"}",
        TOLD.pack().replace(b'"vocabulary": 256', b'"vocabulary": Infinity'),
        TOLD.pack().replace(b'"seq": 64', b'"seq": ' + MANY),
    ],
    ids=["no JSON", "nested", "no number", "negative", "too large", "vocabulary", "too many tokens"],
)
def test_a_goal_that_no_release_wrote_is_refused(data):
    """One bad record of any process ended `status`, its page and the view of `local`."""
    with pytest.raises(UsageError, match="no training that this release knows"):
        read_goal(data)
