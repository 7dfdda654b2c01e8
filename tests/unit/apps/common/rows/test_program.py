"""What a program of a row of layers refuses before torch and the data are read."""

from functools import partial

import pytest

from apps.common.rows.program import main
from apps.common.rows.row_to_plan import RowToPlan, row_to_plan
from apps.gpt2.__main__ import main as gpt2
from apps.llama.__main__ import LlamaFlags

LLAMA = partial(main, "apps.llama", LlamaFlags())


def test_sums_are_measured_by_gpt2_alone_and_its_help_alone_says_so(capsys):
    assert LLAMA(["--all-reduce", "measured"]) == 2
    assert "unknown all-reduce algorithm 'measured'" in capsys.readouterr().err
    for program, says in ((LLAMA, False), (gpt2, True)):
        with pytest.raises(SystemExit):
            program(["--help"])
        assert ("measured:" in capsys.readouterr().out) == says


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--exact-sums --compress bf16", "a codec between stages rounds"),
        ("--exact-sums --dtype float16", "exact sums repeat a step"),
        ("--dtype float16 --schedule pipedream --depth 2", "none can skip a step"),
        ("--shard-optimizer --all-reduce native", "the all-reduce native has no reduce-scatter half"),
        ("--min-lr 1 --lr 0.5", "--min-lr is above --lr (1, 0.5); lower it"),
        ("--min-lr 1e-4 --lr-schedule constant", "a constant learning rate does not fall to --min-lr 0.0001"),
    ],
)
@pytest.mark.parametrize("program", [LLAMA, gpt2], ids=["llama", "gpt2"])
def test_what_the_trainer_would_refuse_is_refused_before_the_data_is_read(flags, message, program, capsys, monkeypatch):
    def read(*given: object) -> None:
        raise AssertionError("the data was read")

    monkeypatch.setattr("apps.common.rows.text_task.read_text", read)
    monkeypatch.setattr("apps.gpt2.text.read_text", read)
    assert program([*flags.split(), "--steps", "1"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("schedule", "more"), [("swarm", ""), ("ravnest", ", or --schedule async_1f1b")])
def test_a_schedule_of_gpt2_alone_is_refused_with_its_program(schedule, more, capsys):
    """Ravnest's was called async_1f1b, as if this formed clusters."""
    assert LLAMA(["--schedule", schedule]) == 2
    assert f"use `python -m apps.gpt2 --schedule {schedule}`{more}" in capsys.readouterr().err


def test_a_program_that_compiles_is_planned_so():
    assert row_to_plan(RowToPlan, LlamaFlags(depth=2, compile=True)).fixed == {"depth": 2, "compile": True}
