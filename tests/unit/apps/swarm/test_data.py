"""A microbatch's data follow from its name and the seed, in any process and in any order."""

from pathlib import Path

import numpy as np
import pytest

from apps.common.lm.data.batches import Batches, validation_windows
from apps.common.lm.data.text import read_text
from apps.swarm import __main__ as swarm
from apps.swarm.data import feed_of, read_task
from pipelined.errors import UsageError
from pipelined.swarm.stages.swarm_stage import Microbatch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("".join(f"line {number}\n" for number in range(400)))
    return tmp_path / "text.txt"


def test_processes_that_read_the_same_text_find_the_same_microbatches_in_any_order(path: Path):
    names = [Microbatch(step, index) for step in (0, 30, 5) for index in range(4)]
    one, other = (feed_of(read_text([path], "bytes"), 2, 8, 4, seed=3) for _ in range(2))
    expected = {which: one(which) for which in names}
    for which in reversed(names):
        (inputs,), (labels,) = other(which)
        assert np.array_equal(inputs, expected[which][0][0])
        assert np.array_equal(labels, expected[which][1][0])
        assert (inputs.dtype, inputs.shape) == (labels.dtype, labels.shape) == (np.dtype(np.int64), (2, 8))
        assert np.array_equal(inputs[:, 1:], labels[:, :-1])


def test_a_step_trains_on_what_every_other_program_here_trains_on(path: Path):
    text = read_text([path], "bytes")
    feed, batches = feed_of(text, 2, 8, 4, seed=3), Batches(text.train, 8, 2, 4, 3)
    for which in (Microbatch(0, 0), Microbatch(7, 3)):
        assert np.array_equal(feed(which)[0][0], batches.rows(which.step, which.index)[0])


@pytest.mark.parametrize("which", [Microbatch(0, 4 + 11), Microbatch(0, -1), Microbatch(-1, 0), Microbatch(-1, 4)])
def test_an_impossible_microbatch_is_refused(path: Path, which: Microbatch):
    with pytest.raises(ValueError, match=rf"step: {which.step}, index: {which.index}, microbatches: 4"):
        feed_of(read_text([path], "bytes"), 2, 8, 4, seed=3)(which)


@pytest.mark.parametrize("rows", [1, 2, 5, 16])
def test_validation_data_is_every_window_once_whatever_the_step(path: Path, rows: int):
    text = read_text([path], "bytes")
    feed = feed_of(text, rows, 8, 4, seed=3)
    told = [feed(Microbatch(step, 4 + number)) for number, step in enumerate(range(9, 9 + feed.held_out))]
    labels = np.concatenate([labels for _, (labels,) in told])
    inputs = np.concatenate([inputs[: len(labels)] for (inputs,), (labels,) in told])
    windows = validation_windows(text.validation, 8)
    assert np.array_equal(inputs, windows[0]) and np.array_equal(labels, windows[1])
    for (inputs,), (labels,) in told:
        assert (inputs.dtype, labels.dtype, inputs.shape) == (np.int64, np.int64, (rows, 8))
        assert np.array_equal(inputs[len(labels) :], np.repeat(inputs[:1], rows - len(labels), axis=0))


@pytest.mark.parametrize("flags, windows", [([], 22), (["--eval-windows", "5"], 5), (["--eval-windows", "0"], 22)])
def test_an_evaluation_of_a_swarm_scores_as_many_windows_as_the_flag_says(path, flags, windows):
    at = ["--coordinator", "tcp://127.0.0.1:1", "--data", str(path), "--batch", "4", "--microbatch", "2", "--seq", "8"]
    train = swarm.parse(["train", *at, *flags])
    _, task, feed = read_task(train.settings, train.text)
    assert len(feed.windows[0]) == windows and task.held_out == -(-windows // 2)


def test_an_evaluation_of_less_than_no_window_is_refused(capsys):
    assert swarm.main(["train", "--coordinator", "tcp://127.0.0.1:1", "--eval-windows", "-1"]) == 2
    assert "--eval-windows must be at least 0 (it is -1); 0 scores all windows" in capsys.readouterr().err


def test_text_without_one_window_of_validation_data_is_refused(path: Path):
    with pytest.raises(UsageError, match="too little validation text"):
        feed_of(read_text([path], "bytes"), 1, 300, 1, seed=3)


@pytest.mark.parametrize("line", ["line 7\n", "line 399\n"])
def test_a_texts_digest_is_of_tokenizer_and_all_ids(path: Path, line: str):
    digest = read_text([path], "bytes").digest
    assert read_text([path], "bytes").digest == digest
    assert read_text([path], "bpe:300").digest != digest
    path.write_text(path.read_text().replace(line, line.replace("line", "LINE")))
    assert read_text([path], "bytes").digest != digest
