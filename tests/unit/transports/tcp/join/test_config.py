"""A rank's configuration, read from the URL and the launcher's variables: every mistake is named with its remedy."""

import pytest

from transports import AuthenticationError, RendezvousError
from transports.tcp.join.config import WAIT_S, TcpConfig
from transports.urls import ParsedUrl

BY_HAND = {"RANK": "1", "WORLD_SIZE": "4"}
TORCHRUN = {
    **BY_HAND,
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node7",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "job",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def config(url, environ):
    return TcpConfig.of(ParsedUrl("transport", url, ["tcp"]), environ)


def test_the_url_alone_says_where_the_ranks_meet():
    assert config("tcp://10.0.0.1:4000?wait=5.5", BY_HAND) == TcpConfig(1, 4, "10.0.0.1", 4000, wait=5.5)


def test_torchruns_variables_say_the_rest():
    torchrun = config("tcp://", TORCHRUN)
    assert (torchrun.host, torchrun.port, torchrun.run, torchrun.wait) == ("node7", 29500, "job/2", WAIT_S)
    assert torchrun.one_machine and torchrun.store


@pytest.mark.parametrize(
    ("url", "store"), [("tcp://node7:29500", True), ("tcp://node7:29501", False), ("tcp://10.0.0.1", False)]
)
def test_the_store_is_used_only_where_the_launcher_names_it(url, store):
    assert config(url, TORCHRUN).store is store
    assert not config(url, {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "False"}).store


def test_ranks_on_several_machines_are_not_taken_for_one_machine():
    assert not config("tcp://", {**TORCHRUN, "LOCAL_WORLD_SIZE": "2"}).one_machine
    assert not config("tcp://10.0.0.1:4000", BY_HAND).one_machine


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_a_variable_that_is_missing_or_makes_no_sense_is_named(name):
    for text in ["", "-1", "x", "1e3", "²", "99999999999"]:
        if name != "MASTER_ADDR" or not text:
            with pytest.raises(RendezvousError, match=rf"{name} .*start with torchrun"):
                config("tcp://", {**TORCHRUN, name: text})
    with pytest.raises(RendezvousError, match=name):
        config("tcp://", {key: value for key, value in TORCHRUN.items() if key != name})


def test_a_rank_outside_the_world_is_named_with_the_range():
    with pytest.raises(RendezvousError, match=r"RANK must be an integer from 0 to 3 \(got: '4'\)"):
        config("tcp://", {**TORCHRUN, "RANK": "4"})


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("tcp://here:port", "tcp://HOST:PORT"),
        ("tcp://here:0", "port 0 in 'tcp://here:0'"),
        ("tcp://here:1?wait=0", "more than 0"),
        ("tcp://here:1?wait=soon", "'soon'"),
        ("tcp://here:1?wait=nan", "'nan'"),
        ("tcp://here:1?speed=9", "got: speed; known: wait"),
        ("tcp://here/29500", "got: 'tcp://here/29500'); write tcp://HOST:PORT"),
        ("tcp://user@here:1", "a host, a port and options only"),
        ("tcp://here:1#wait=5", "a host, a port and options only"),
    ],
)
def test_a_url_that_makes_no_sense_is_a_value_error(url, message):
    with pytest.raises(ValueError) as refused:
        config(url, TORCHRUN)
    assert message in str(refused.value)


def test_the_key_comes_from_a_variable_or_a_file_and_is_never_shown(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(b"from a file\n")
    assert config("tcp://a:1", {**BY_HAND, "PIPELINED_KEY": "given"}).shared_key == b"given"
    join_config = config("tcp://a:1", {**BY_HAND, "PIPELINED_KEY_FILE": str(path)})
    assert join_config.shared_key == b"from a file" and "from a file" not in repr(join_config)
    assert config("tcp://a:1", {**BY_HAND, "PIPELINED_KEY": " giv\udcffen\n"}).shared_key == b"giv\xffen"
    assert config("tcp://a:1", BY_HAND).shared_key == b""


def test_a_key_that_cannot_be_read_is_an_authentication_error(tmp_path):
    (tmp_path / "empty").write_text(" \n")
    for name, message in [("empty", "is empty"), ("missing", "No such file")]:
        with pytest.raises(AuthenticationError, match=message):
            config("tcp://a:1", {**BY_HAND, "PIPELINED_KEY_FILE": str(tmp_path / name)})
    with pytest.raises(AuthenticationError, match=r"has only blanks \(characters: 2\); put the shared key"):
        config("tcp://a:1", {**BY_HAND, "PIPELINED_KEY": " \n"})
    with pytest.raises(AuthenticationError, match="both PIPELINED_KEY and PIPELINED_KEY_FILE"):
        config("tcp://a:1", {**BY_HAND, "PIPELINED_KEY": "x", "PIPELINED_KEY_FILE": str(tmp_path / "empty")})


def test_a_machine_is_what_the_environment_calls_it_or_one_for_all_processes_here():
    assert config("tcp://10.0.0.1:4000", BY_HAND).machine == config("tcp://10.0.0.2:4000", BY_HAND).machine != ""
    assert config("tcp://10.0.0.1:4000", BY_HAND | {"PIPELINED_NODE": "rack-7"}).machine == "rack-7"


@pytest.mark.parametrize(
    ("query", "unix"), [("", True), ("?unix=yes", True), ("?unix=no", False), ("?wait=5&unix=no", False)]
)
def test_unix_sockets_may_be_left_out(query, unix):
    assert config(f"tcp://10.0.0.1:4000{query}", BY_HAND).unix == unix


def test_a_switch_rejects_other_values_than_yes_and_no():
    with pytest.raises(ValueError, match=r"\?unix= takes yes or no \(got: 'maybe'\)"):
        config("tcp://10.0.0.1:4000?unix=maybe", BY_HAND)
