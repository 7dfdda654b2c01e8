"""docs/ravnest-plan.md: its command plans its pool, and prints the plan that is shown."""

import re

from apps.ravnest.__main__ import main
from tests.launching import ROOT

TEXT = (ROOT / "docs" / "ravnest-plan.md").read_text()


def test_the_command_plans_the_pool_that_is_shown(tmp_path, monkeypatch, capsys):
    (pool,) = re.findall(r"^```text\n(name,ram.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    (tmp_path / "pool.csv").write_text(pool)
    monkeypatch.chdir(tmp_path)
    (command,) = {*re.findall(r"python -m apps\.ravnest (plan .*)", TEXT)}
    assert main(command.split()) == 0
    assert f"```text\n{capsys.readouterr().out}```" in TEXT
