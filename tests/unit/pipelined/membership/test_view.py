"""A membership view knows no system: it applies the records of any keys to the tables that it is given."""

import asyncio
from dataclasses import dataclass

import pytest

from pipelined.aio.clock import VirtualClock, run_virtual
from pipelined.membership.directory import EmbeddedDirectory, Entry, serve_directory
from pipelined.membership.record import Record
from pipelined.membership.view import MembershipView, Single, Table
from transports.rpc.virtual.network import VirtualNetwork


@dataclass(frozen=True, slots=True)
class Boat(Record):
    """A member of a system that trains nothing."""

    name: str
    address: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Harbour(Record):
    """A record under one key."""

    berths: int


def view_of(directory=None, prefixes=""):
    boats, harbour = Table(Boat), Single(Harbour)
    tables = {"boats/": boats.apply, "harbour": harbour.apply}
    view = MembershipView(directory, VirtualClock(), tables=tables, members={Boat: boats}, prefixes=prefixes)
    return view, boats, harbour


async def test_each_key_reaches_the_table_of_its_prefix_and_other_keys_reach_none():
    view, boats, harbour = view_of()
    view.apply("boats/a", Entry(Boat("a", "tcp://a", 3).pack(), 1))
    view.apply("harbour", Entry(Harbour(7).pack(), 2))
    view.apply("trains/b", Entry(b"", 3))
    assert boats == {"a": Boat("a", "tcp://a", 3)} and harbour.record == Harbour(7) and harbour.revision == 2


async def test_a_member_is_here_in_the_incarnation_of_its_record_alone():
    view, _, _ = view_of()
    view.apply("boats/a", Entry(Boat("a", "tcp://a", 3).pack(), 1))
    assert view.is_present(Boat("a", "tcp://b", 3))
    assert not view.is_present(Boat("a", "tcp://a", 4)) and not view.is_present(Boat("b", "tcp://a", 3))


def test_only_the_followed_prefixes_are_read_and_others_once_they_are_followed():
    async def story():
        network, clock = VirtualNetwork(), VirtualClock()
        async with asyncio.TaskGroup() as tasks, network.endpoint("directory") as end, network.endpoint("one") as one:
            serving = tasks.create_task(serve_directory(end, clock))
            directory = EmbeddedDirectory(one, end.address, clock)
            await directory.transact({}, {"boats/a": Boat("a", "tcp://a", 1).pack(), "harbour": Harbour(7).pack()})
            view, boats, harbour = view_of(directory, ("harbour",))
            following = tasks.create_task(view.follow())
            await view.wait_for(lambda: view.is_loaded)
            assert not boats and harbour.record == Harbour(7)
            view.follow_only(("boats/",))
            await view.wait_for(lambda: view.is_loaded)
            assert set(boats) == {"a"} and harbour.record is None
            following.cancel()
            serving.cancel()

    run_virtual(story())


async def test_a_time_out_inside_the_block_does_not_say_that_the_condition_ended():
    view, _, _ = view_of()
    with pytest.raises(TimeoutError, match="a read took too long"):
        async with view.while_holds(lambda: True):
            raise TimeoutError("a read took too long")
