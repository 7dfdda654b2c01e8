"""What a program of a row of layers refuses before torch and the data are read."""

from functools import partial

import pytest

from apps.gpt2.__main__ import main as gpt2
from apps.llama.__main__ import Config
from apps.rows.program import main

LLAMA = partial(main, "apps.llama", Config())


def test_sums_are_measured_by_gpt2_alone_and_its_help_alone_says_so(capsys):
    assert LLAMA(["--all-reduce", "measured"]) == 2
    assert "unknown all-reduce algorithm 'measured'" in capsys.readouterr().err
    for program, says in ((LLAMA, False), (gpt2, True)):
        with pytest.raises(SystemExit):
            program(["--help"])
        assert ("measured:" in capsys.readouterr().out) == says
