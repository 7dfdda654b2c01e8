"""The machine does what the naive directory does, whatever happens to both; and what only it does is done right."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from pipelined.membership.directory import (
    Change,
    Conflict,
    DirectoryLimits,
    Entry,
    FellBehind,
    Full,
    LeaseLost,
    Snapshot,
)
from pipelined.membership.directory.messages import RequestId, StaleRequest
from pipelined.membership.directory.server.state_machine import Folders, StateMachine
from tests.unit.pipelined.membership.directory.naive_directory import NaiveDirectory

KEYS = st.sampled_from(["a", "aa", "ab", "b", "ba"])
VALUES = st.binary(max_size=2)
SECONDS = st.integers(1, 8).map(float)


class Twins(RuleBasedStateMachine):
    """A machine, one that begins from its snapshot and replays its transitions since, and the naive directory."""

    leases, revisions = Bundle("leases"), Bundle("revisions")

    def __init__(self):
        super().__init__()
        self.machine, self.naive, self.now, self.number = StateMachine(7), NaiveDirectory(), 0.0, 0
        self.client = self.machine.enter()
        self.follow = self.begun()

    def begun(self):
        follower = StateMachine(0)
        follower.replay(self.machine.snapshot())
        self.machine.transitions.clear()
        return follower

    def request(self):
        self.number += 1
        return RequestId(self.client, self.number, self.number)

    @rule(seconds=st.integers(0, 5))
    def let_time_pass(self, seconds):
        self.now += seconds

    @rule(target=leases, seconds=SECONDS)
    def grant(self, seconds):
        lease = self.machine.grant(self.request(), seconds, self.now)
        self.naive.grant(lease, seconds, self.now)
        return lease

    @rule(lease=leases)
    def renew(self, lease):
        self.machine.expire(self.now)
        try:
            self.machine.renew(lease, self.now)
            renewed = True
        except LeaseLost:
            renewed = False
        assert renewed == self.naive.renew(lease, self.now)

    @rule(lease=leases)
    def revoke(self, lease):
        self.machine.revoke(lease)
        self.naive.end(lease)

    @rule(lease=leases, grace=SECONDS)
    def shorten(self, lease, grace):
        self.machine.shorten(lease, self.now + grace)
        self.naive.shorten(lease, self.now + grace)

    @rule()
    def extend_after_pause(self):
        self.machine.extend_after_pause(self.now)
        self.naive.extend_after_pause(self.now)

    @rule(
        target=revisions,
        expect=st.dictionaries(KEYS, revisions | st.just(0), max_size=1),
        put=st.dictionaries(KEYS, VALUES, max_size=3),
        delete=st.lists(KEYS, max_size=2, unique=True),
        lease=leases | st.just(0),
        again=st.booleans(),
    )
    def transact(self, expect, put, delete, lease, again):
        delete = [key for key in delete if key not in put]
        self.machine.expire(self.now)
        request, before = self.request(), self.machine.revision
        try:
            outcome = self.machine.transact(request, expect, put, delete, lease)
            if again and outcome > before:
                assert self.machine.transact(request, expect, put, delete, lease) == outcome
        except LeaseLost:
            outcome = "lease lost"
        except Conflict as conflict:
            outcome = conflict.entries
        assert outcome == self.naive.transact(expect, put, delete, lease, self.now)
        return outcome if isinstance(outcome, int) else multiple()

    @rule(prefix=st.sampled_from(["", "a", "aa", "c"]), after=revisions)
    def watch(self, prefix, after):
        told = self.machine.changes(prefix, after)
        assert [change for changes in told for change in changes] == self.naive.changes(prefix, after)
        assert all({change.revision for change in changes} == {changes[0].revision} for changes in told)

    @rule()
    def restart(self):
        """All leases live their whole time again in the one that replayed."""
        self.follow.replay(self.machine.transitions)
        self.machine = self.follow
        self.machine.renew_all(self.now)
        self.naive.leases = {
            lease: (self.now + seconds, seconds, False) for lease, (_, seconds, _) in self.naive.leases.items()
        }
        self.follow = self.begun()

    @invariant()
    def nothing_differs(self):
        self.machine.expire(self.now)
        self.naive.expire(self.now)
        assert self.machine.read("") == Snapshot(self.naive.revision, self.naive.entries)
        ends = [end for end, _, _ in self.naive.leases.values()]
        assert self.machine.next_expiry() == min(ends, default=None)

    def teardown(self):
        self.follow.replay(self.machine.transitions)
        assert self.follow.snapshot() == self.machine.snapshot()


TestTwins = Twins.TestCase
TestTwins.settings = settings(max_examples=60, stateful_step_count=40)


@pytest.fixture
def machine():
    return StateMachine(1, DirectoryLimits(entries=3, total=20, leases=2, clients=2, unsettled=2, history=250))


def asked(machine, *numbers, settled=0):
    client = machine.enter()
    return [RequestId(client, number, settled) for number in numbers]


def test_a_repeated_grant_is_the_same_lease(machine):
    (request,) = asked(machine, 0)
    assert machine.grant(request, 1.0, 0.0) == machine.grant(request, 1.0, 9.0)
    assert machine.next_expiry() == 1.0


def test_a_request_that_was_settled_is_never_done(machine):
    late, next_one = asked(machine, 0, 1)
    machine.transact(next_one._replace(settled=1), {}, {"a": b""})
    with pytest.raises(StaleRequest, match=r"request: 0, settled below: 1"):
        machine.transact(late, {}, {"a": b"late"})
    assert machine.read("").entries == {"a": Entry(b"", 1)}


def test_a_forgotten_client_is_rejected(machine):
    (request,) = asked(machine, 0)
    machine.enter(), machine.enter()
    with pytest.raises(StaleRequest, match=r"no such client"):
        machine.transact(request, {}, {"a": b""})


def test_a_client_that_writes_is_forgotten_after_one_that_does_not(machine):
    (request,), _ = asked(machine, 0), machine.enter()
    machine.transact(request, {}, {"a": b""})
    machine.enter()
    assert machine.transact(request, {}, {"a": b""}) == 1


def test_a_client_with_a_lease_is_forgotten_after_those_without_however_much_they_write(machine):
    holder, later = asked(machine, 0, 1)
    lease = machine.grant(holder, 1.0, 0.0)
    for _ in range(3):
        (writer,) = asked(machine, 0)
        machine.transact(writer, {}, {"a": b""})
    machine.transact(later, {}, {"b": b""}, lease=lease)
    machine.revoke(lease)
    for _ in range(2):
        machine.enter()
    with pytest.raises(StaleRequest, match=r"no such client"):
        machine.transact(later._replace(number=2), {}, {"b": b""})


def test_among_clients_with_leases_the_one_longest_silent_is_forgotten(machine):
    first, second = asked(machine, 0)[0], asked(machine, 0)[0]
    for request in (first, second):
        machine.grant(request, 1.0, 0.0)
    machine.enter()
    with pytest.raises(StaleRequest, match=r"no such client"):
        machine.transact(first._replace(number=1), {}, {"a": b""})
    machine.transact(second._replace(number=1), {}, {"a": b""})


def test_a_snapshot_says_which_clients_hold_leases(machine):
    holder, later = asked(machine, 0, 1)
    machine.grant(holder, 1.0, 0.0)
    restored = StateMachine(1, machine.limits)
    restored.replay(machine.snapshot())
    restored.enter(), restored.enter()
    restored.transact(later, {}, {"a": b""})


def test_a_conflict_is_not_remembered(machine):
    request, other = asked(machine, 0, 1)
    with pytest.raises(Conflict):
        machine.transact(request, {"a": 1}, {"b": b""})
    machine.transact(other, {}, {"a": b""})
    assert machine.transact(request, {"a": 1}, {"b": b""}) == 2


def test_what_is_full_says_of_what_and_changes_nothing(machine):
    first, second, third = asked(machine, 0, 1, 2)
    machine.grant(first, 1.0, 0.0), machine.grant(second, 1.0, 0.0)
    with pytest.raises(Full, match=r"requests unsettled \(most: 2\)"):
        machine.grant(third, 1.0, 0.0)
    third = third._replace(settled=2)  # the replies to both have come
    with pytest.raises(Full, match=r"leases: 2, most: 2"):
        machine.grant(third, 1.0, 0.0)
    request, again = asked(machine, 0, 1)
    with pytest.raises(Full, match=r"keys: 4, most: 3"):
        machine.transact(request, {}, dict.fromkeys("abcd", b""))
    with pytest.raises(Full, match=r"bytes: 21, most: 20"):
        machine.transact(request, {}, {"a": bytes(20)})
    assert machine.revision == 0
    machine.transact(request, {}, {"a": bytes(19)})
    assert machine.transact(again, {}, {"b": bytes(19)}, ["a"]) == 2


def test_where_there_are_as_many_keys_as_may_be_one_may_be_put_for_another(machine):
    first, second = asked(machine, 0, 1)
    machine.transact(first, {}, dict.fromkeys("abc", b""))
    assert machine.transact(second, {}, {"d": b""}, ["a"]) == 2


def test_a_watcher_behind_the_kept_changes_must_read_again(machine):
    for number, request in enumerate(asked(machine, *range(4))):
        machine.transact(request._replace(settled=number), {}, {"a": bytes(10)})
    assert machine.changes("", 2) == [[Change("a", Entry(bytes(10), n), n)] for n in (3, 4)]
    with pytest.raises(FellBehind, match=r"from revision 2 on \(after: 1\)"):
        machine.changes("", 1)


def test_the_last_change_is_kept_however_large(machine):
    machine = StateMachine(1, DirectoryLimits(history=10))
    (request,) = asked(machine, 0)
    machine.transact(request, {}, {"a": bytes(1000)})
    assert len(machine.changes("", 0)) == 1


def test_a_lease_is_spared_once_for_each_renewal(machine):
    (request,) = asked(machine, 0)
    lease = machine.grant(request, 3.0, 0.0)
    machine.extend_after_pause(5.0)
    assert machine.next_expiry() == 7.0  # it was two seconds late
    machine.extend_after_pause(8.0)
    assert machine.next_expiry() == 7.0
    machine.renew(lease, 8.0)
    machine.extend_after_pause(100.0)
    assert machine.next_expiry() == 103.0  # at most as long as it lives


def test_folders_find_what_begins_with_a_prefix_and_forget_what_is_gone():
    folders, entry = Folders(), Entry(b"", 1)
    keys = ["head", "headless", "a/1", "a/b/1", "ab/1", "b/1"]
    for key in keys:
        folders.put(key, entry)
    for prefix in ("", "a", "a/", "a/b", "a/b/", "head", "b/1", "c", ("b/", "head"), ("", "a/")):
        assert set(folders.entries_below(prefix)) == {key for key in keys if key.startswith(prefix)}
    for key in keys:
        folders.put(key, None)
    assert folders.entries_below("") == {} and not folders._folders
