"""A file of flags for one command of a program of several: as if its flags stood after the command."""

import pytest

from apps.ravnest.__main__ import parse as ravnest
from apps.swarm.__main__ import main
from apps.swarm.__main__ import parse as swarm
from pipelined.errors import UsageError

AT = ["--coordinator", "tcp://127.0.0.1:1"]
CASES = {
    "swarm local": (
        swarm,
        'peers = 8\nstages = 2\nlr = 6e-4\nexact-sums = true\ndata = ["a b", "c"]\nsample = 5\nprompt = "-x"\n',
        [
            *["local", "--peers", "8", "--stages", "2", "--lr", "6e-4", "--exact-sums", "--data", "a b", "c"],
            *["--sample", "5", "--prompt=-x"],
        ],
    ),
    "swarm serve": (swarm, "grace = 3.5\nstage = 7\n", ["serve", *AT, "--grace", "3.5", "--stage", "7"]),
    "ravnest train": (ravnest, "nodes = 3\nlayers = 2\n", ["train", *AT, "--nodes", "3", "--layers", "2"]),
    "ravnest plan": (ravnest, 'pool = "p.csv"\nbytes = "1G"\n', ["plan", "--pool", "p.csv", "--bytes", "1G"]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_file_has_the_effect_of_its_flags_and_a_flag_that_is_given_wins(case, tmp_path):
    parse, text, words = CASES[case]
    (tmp_path / "run.toml").write_text(text)
    file, given = ["--config", str(tmp_path / "run.toml")], AT if AT[0] in words else []

    def without_file(flags):
        return {name: value for name, value in vars(flags).items() if name != "config"}

    assert without_file(parse([words[0], *given, *file])) == without_file(parse(words))
    again = words[-2:] if not words[-1].startswith("--") else ["--peers", "9"]
    changed = [again[0], {"1G": "2G"}.get(again[1], "9")]
    assert without_file(parse([words[0], *given, *changed, *file])) == without_file(parse([*words, *changed]))


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("learning_rate = 1", r"a key that is no flag .'learning_rate'.; did you mean lr\?"),
        ("grace = 1", r"a key that is no flag .'grace'."),
        ('config = "b.toml"', "names another file of flags"),
    ],
)
def test_a_key_that_is_no_flag_of_the_command_is_refused(text, fact, tmp_path):
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(UsageError, match=fact):
        swarm(["local", "--config", str(tmp_path / "run.toml")])


def test_a_command_without_a_file_of_flags_refuses_the_flag(capsys):
    assert main(["coordinator", "--config", "a.toml"]) == 2
    assert "--config" in capsys.readouterr().err
