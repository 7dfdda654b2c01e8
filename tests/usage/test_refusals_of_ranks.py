"""The user's mistakes under real launchers: still one message, from one rank, and exit code 2 on every rank in time."""

import os
import re
import socket
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from apps.gpt2 import __main__ as gpt2
from tests.launching import ROOT, launched, mpirun, python_with, started

SECONDS = 10
DEPTH = "the ranks are not a multiple of the depth (ranks: {}, depth: 3)"
EMPTY = "the text /dev/null is empty (0 bytes)"
CODED = ["-m", "tests.usage.coded"]
TORCHRUN = [Path(sys.executable).with_name("torchrun"), "--nproc-per-node", 3]
SLOW = "openmpi", "torchrun"


@contextmanager
def in_time(request):
    """Fail past the seconds that were promised, unless other work may hold the machine up."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < SECONDS * (1 if request.config.getoption("--full") else 3)


def messages(text):
    return [line for line in text.splitlines() if line.startswith("python -m apps.gpt2: error: ")]


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(
    ("ranks", "flags", "fact"),
    [
        (8, "--depth 3", DEPTH.format(8)),
        (4, "--data /dev/null", EMPTY),
        pytest.param(8, "--data /dev/null", EMPTY, marks=pytest.mark.full),
        pytest.param(8, "--resume /absent", "no checkpoint /absent", marks=pytest.mark.full),
        pytest.param(5, "--vocab 100", "tokenizer: 256, model: 100", marks=pytest.mark.full),
        pytest.param(4, "--depth 4 --width 2", "ranks: 4, depth: 4, width: 2", marks=pytest.mark.full),
    ],
)
def test_under_mpirun_one_rank_reports_and_every_rank_exits_with_2(ranks, flags, fact, tmp_path, request):
    command, env = mpirun("mpich", ranks, *CODED, tmp_path, *flags.split())
    with in_time(request):
        done = launched(command, timeout=60, env=env)
    assert done.returncode == 2, done.stderr
    assert len(messages(done.stderr)) == 1 and fact in done.stderr
    assert [Path(tmp_path, f"rank-{rank}").read_text() for rank in range(ranks)] == ["2"] * ranks
    assert "Traceback" not in done.stderr


FAILING = """#!/bin/sh
case "$*" in *--version*) exec g++ --version;; esac
echo "fatal error: omp.h: No such file" >&2
exit 1
"""
COMPILED = """
import os, runpy, sys
ranks, compiler = sys.argv[1:3]
del sys.argv[1:3]
if os.environ["PMI_RANK"] in ranks:
    os.environ["CXX"] = compiler
else:
    import torch
    torch.compile = lambda stage, **how: stage  # to compile a sound stage takes a minute and shows nothing here
runpy.run_module("apps.gpt2", run_name="__main__")
"""


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(
    ("ranks", "compiler", "fact"),
    [
        ("01", "/bin/false", "in one piece (InvalidCxxCompiler: No working C++ compiler found in"),
        ("1", "g++ without headers", "stage 1 in one piece (CppCompileError: C++ compile error fatal error: omp.h: No"),
    ],
    ids=["no compiler", "no headers"],
)
def test_a_compiler_that_fails_on_some_ranks_is_reported_once_and_ends_all_with_2(ranks, compiler, fact, tmp_path):
    if not os.path.isabs(compiler):
        compiler = tmp_path / "g++"
        compiler.write_text(FAILING)
        compiler.chmod(0o700)
    flags = "--schedule gpipe --depth 2 --layers 2 --d-model 16 --heads 2 --seq 8 --batch 2 --steps 1 --data LICENSE"
    command, env = mpirun("mpich", 2, "-c", COMPILED, ranks, compiler, "--compile", *flags.split())
    done = launched(command, timeout=120, env={**env, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")})
    assert done.returncode == 2, done.stderr
    assert len(messages(done.stderr)) == 1 and fact in done.stderr
    assert "; leave compile out" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("flags", ["--depth 3", pytest.param("--data /dev/null", marks=pytest.mark.full)])
def test_a_launcher_that_ends_all_with_the_first_lets_rank_0_speak(flags, request):
    command, env = mpirun("openmpi", 4, "-m", "apps.gpt2", *flags.split())
    with in_time(request):
        done = launched(command, timeout=60, env=env)
    assert done.returncode == 2, done.stderr
    assert len(messages(done.stderr)) == 1


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("flags", ["--depth 3", pytest.param("--data /dev/null", marks=pytest.mark.full)])
def test_under_torchrun_one_rank_reports_and_every_rank_exits_with_2(flags, request):
    with in_time(request):
        done = launched(
            [Path(sys.executable).with_name("torchrun"), "--nproc-per-node", 4, "-m", "apps.gpt2", *flags.split()],
            timeout=60,
        )
    assert done.returncode == 1, "torchrun's own code"
    assert len(messages(done.stderr)) == 1, done.stderr
    assert re.findall(r"exitcode  : (-?\d+)", done.stderr) == ["2"] * 4, done.stderr


@pytest.mark.parametrize("algorithm", ["native", "shared"])
def test_sums_that_the_transport_cannot_offer_are_refused_before_the_first_step(algorithm, capfd):
    assert gpt2.main(["--depth", "2", "--all-reduce", algorithm, "--transport", "local"]) == 2
    out, err = capfd.readouterr()
    fact = f"this transport has no {algorithm} all-reduce for these ranks (ranks: (0, 1))"
    assert fact in err and len(messages(err)) == len(err.splitlines()) == 1 and "\nstep " not in out


@contextmanager
def taken_port():
    """A port on loopback on which another program listens."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def free_port():
    """A port on loopback that was free a moment ago."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        return holder.getsockname()[1]


def by_hand(ranks, port, *program):
    """Start ranks over TCP as a user does without torchrun; their exit codes and what each said on stderr."""
    with ExitStack() as group:
        processes = []
        for rank in range(ranks):
            place = {"RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            env = {name: str(value) for name, value in place.items()} | {"PIPELINED_KEY": "ours"}
            processes.append(group.enter_context(started([sys.executable, *program], env)))
        said = [process.communicate(timeout=60)[0] for process in processes]
    return [process.returncode for process in processes], said


@pytest.mark.in_turns(4)
def test_rank_0_reports_a_port_in_use_and_all_ranks_exit(request):
    with taken_port() as number, in_time(request):
        codes, said = by_hand(3, number, "-m", "apps.gpt2", "--steps", 1, "--sample", 0)
    assert codes == [2] * 3
    assert messages("".join(said)) == messages(said[0])
    assert f"is taken (host: 127.0.0.1, port: {number}); choose another MASTER_PORT" in said[0]


ALONE = """
import os, runpy, sys
from pipelined.process.launch import detect
sys.argv = ["apps.gpt2", "--steps", "many" if detect(os.environ).rank == 1 else "1", "--sample", "0"]
runpy.run_module("apps.gpt2", run_name="__main__")
"""
MANY = "--steps must be a whole number (it is 'many')"


@pytest.fixture
def alone(tmp_path):
    """A program whose rank 1 alone refuses its flags, while the other ranks wait for it."""
    (tmp_path / "alone.py").write_text(ALONE)
    return tmp_path / "alone.py"


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("launcher", ["mpich", *(pytest.param(name, marks=pytest.mark.full) for name in SLOW)])
def test_a_rank_that_alone_refuses_its_flags_reports_and_ends_all(launcher, alone, request):
    command, env = (TORCHRUN, {}) if launcher == "torchrun" else mpirun(launcher, 3)
    with in_time(request):
        done = launched([*command, alone], timeout=60, env={**env, "PYTHONPATH": str(ROOT)})
    assert done.returncode == (1 if launcher == "torchrun" else 2), done.stderr
    assert len(messages(done.stderr)) == 1 and MANY in done.stderr, done.stderr
    assert "step" not in done.stdout


@pytest.mark.in_turns(4)
def test_a_rank_that_no_launcher_watches_ends_the_others_over_tcp(alone, request, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with in_time(request):
        codes, said = by_hand(3, free_port(), alone)
    assert codes == [2] * 3, said
    assert MANY in "".join(messages(said[0])) and len(messages("".join(said))) == 1, said


ALONE_IN_MPI = """
import asyncio, os
if os.environ["PMI_RANK"] == "0":
    from transports import open_transport
    asyncio.run(open_transport("mpi://?wait=0.2"))
"""


def test_a_rank_that_never_opens_mpi_ends_the_wait_of_the_others_with_the_reason():
    """The other rank has ended by itself: where Hydra kills one, its mpirun may report that rank's SIGKILL (9)."""
    command, env = mpirun("mpich", 2, "-c", ALONE_IN_MPI)
    done = launched(command, timeout=60, env=env)
    assert done.returncode == 2, done.stderr
    assert "rank 0 waited 0.2 s for all ranks to open MPI (ranks: 2); at least one of the others" in done.stderr


def test_a_missing_mpi_library_is_reported_once():
    command, env = mpirun("mpich", 2, "-m", "apps.gpt2")
    done = launched(command, timeout=60, env={**env, "MPI4PY_LIBMPI": "/absent/libmpi.so"})
    assert done.returncode == 2, done.stderr
    assert len(messages(done.stderr)) == 1
    assert "no MPI library could be loaded" in done.stderr and "pip install 'pipelined[mpich]'" in done.stderr


@pytest.mark.parametrize(("launcher", "library"), [("mpich", "openmpi"), ("openmpi", "mpich")])
def test_a_launcher_of_one_mpi_with_the_library_of_the_other_is_refused(launcher, library):
    command, env = mpirun(launcher, 2, "-m", "apps.gpt2")
    command[command.index(python_with(launcher))] = python_with(library)
    done = launched(command, timeout=60, env=env)
    assert done.returncode == 2, done.stderr
    assert len(messages(done.stderr)) == 1
    assert "started 2 ranks" in done.stderr and "use the mpirun that pip installed beside the library" in done.stderr
    assert "step" not in done.stdout
