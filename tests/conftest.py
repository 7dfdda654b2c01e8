"""What holds for all tests: which ones run, and on which loop; ranks agree; hypothesis draws the same everywhere.

Under mpirun every rank runs the same tests; one that fails on any rank fails on all, so that no rank waits for one
that has gone on.
"""

import asyncio
import gc
import inspect
import logging
import os
import reprlib
import signal

import pytest
from hypothesis import settings

from pipelined.aio.clock import run_virtual
from pipelined.process.reporting import events
from tests.alone import runs_alone
from tests.slices import Choice, Slice

MAX_S = 60.0

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: a second thread spins where other work has its core

reprlib.aRepr.repr_instance = lambda value, level: object.__repr__(value)
"""When a loop ends, `asyncio.Runner` looks its signal handler up among the numbers of signals, and the error by which
that fails shows the task and its result: to write out the tensors of all ranks took as long as to train them.
"""

settings.register_profile("exploring", deadline=None)
settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="every case of the large grids, not a sample of them")
    parser.addoption("--slice", type=Slice.parse, metavar="K/N", help="beside the sample, slice K of N of all others")


def pytest_configure(config):
    repeatable = "CI" in os.environ or config.getoption("--with-mpi")
    settings.load_profile("repeatable" if repeatable else "exploring")
    for number, answer in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:  # as a shell starts what runs in its background, or nohup
            signal.signal(number, answer)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Hand files to the workers of `-n`; a run without them never comes here."""
    from tests.side_by_side import SideBySide

    return SideBySide(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collect_directory():
    """Let the second worker of `-n` look from the end: what one has compiled when they meet, the other just reads."""
    folder = yield
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw1":
        collect = folder.collect
        folder.collect = lambda: reversed([*collect()])
    return folder


def pytest_collection_modifyitems(config, items):
    """Leave out what was not asked for, ranks' tests without ranks and the larger part of large grids; tests that
    run beside no other come last, and before them unit tests: their files are short, so that all workers end together.
    """
    order = {path: place for place, path in enumerate(sorted({item.path for item in items}))}
    items.sort(key=lambda item: (runs_alone(item.nodeid), item.nodeid.startswith("tests/unit/"), order[item.path]))
    ranks, full, part = (config.getoption(name) for name in ("--with-mpi", "--full", "--slice"))

    choice = Choice(full, part)
    out = {item for item in items if choice.leaves_out(item) or (item.get_closest_marker("mpi") and not ranks)}
    if out:
        config.hook.pytest_deselected(items=list(out))
        items[:] = [item for item in items if item not in out]


def pytest_collection_finish():
    """Spare the collector of garbage what was imported: it would look through all of it again and again.

    Whether anything is frozen is known from then on: Python counts it all, 40 ms for each job in this process.
    """
    gc.freeze()
    frozen = gc.get_freeze_count()
    gc.get_freeze_count = lambda: frozen


@pytest.fixture(autouse=True)
def _log_as_it_is_at_first():
    """Undo what a program that ran in this process made of the log, and forget other tests' events.

    This is done before a test, because a fixture of a whole module may have run the program.
    """
    events._events.clear()
    logger = logging.getLogger("pipelined")
    logger.handlers[:] = [handler for handler in logger.handlers if isinstance(handler, logging.NullHandler)]
    logger.setLevel(logging.NOTSET)


@pytest.fixture(scope="module", autouse=True)
def _spare_what_is_left():
    """Spare the collector of garbage, after each file, what the file imported: torch's compiler alone has 190,000
    objects, and a node of Ravnest collects garbage whenever it enters a cluster.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def whole_torch():
    """Import what the first optimizer imports, 800 modules, and spare the collector of garbage that as well."""
    import torch._dynamo

    gc.freeze()
    return torch


@pytest.fixture(scope="module")
def one_thread(whole_torch):
    """Let torch compute on one thread: many ranks in one process must not compete for two cores."""
    torch = whole_torch
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine on a loop of its own: for a minute at most, or on virtual time if marked so."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters})
    if pyfuncitem.get_closest_marker("virtual"):
        run_virtual(test)
    else:
        asyncio.run(_in_time(test))
    return True


async def _in_time(test):
    async with asyncio.timeout(MAX_S):
        await test


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Let a test marked mpi end together on all ranks, and fail on all where it fails on one."""
    if not item.get_closest_marker("mpi"):
        return (yield)
    from tests.mpi.every_rank import of_every_rank

    result, error = None, None
    try:
        result = yield
    except (Exception, pytest.fail.Exception, pytest.skip.Exception) as raised:
        error = raised
    failed = of_every_rank(bytes([error is not None and not isinstance(error, pytest.skip.Exception)]))
    if error:
        raise error
    if any(map(any, failed)):
        pytest.fail(f"failed on ranks {[rank for rank, bad in enumerate(failed) if any(bad)]}", pytrace=False)
    return result


def pytest_terminal_summary(terminalreporter):
    """Show what test runs inside this one said of themselves."""
    reports = terminalreporter.getreports("passed")
    lines = [f"{report.nodeid}: {text}" for report in reports for name, text in report.user_properties if name == "run"]
    if lines:
        terminalreporter.section("runs inside this run")
        terminalreporter.write_line("\n".join(lines))
