"""The handshake, in memory: a party that proves the key is admitted with its identity, every other one is refused."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transports import AuthenticationError, RendezvousError, TransportError, WireError
from transports.rpc.tcp.identity import PartyIdentity
from transports.stream.handshake import PROOF_BYTES, VERDICT, Hello, Role, Verdict, accepting, connecting
from transports.stream.shared_key import UnprovenKey
from transports.tcp.join.identity import HELLO, RankIdentity, digest

RANK_3 = RankIdentity(rank=3, world_size=4, run=digest("job/0"), incarnation=33, shared_key=b"secret")
RANK_1 = RankIdentity(rank=1, world_size=4, run=digest("job/0"), incarnation=11, shared_key=b"secret")
PARTY_3 = PartyIdentity(("10.0.0.3", 3000), incarnation=33, shared_key=b"secret")
PARTY_1 = PartyIdentity(("fd00::1", 1000), incarnation=11, shared_key=b"secret")
PAIRS = [(RANK_3, 1, RANK_1), (PARTY_3, 1000, PARTY_1)]


def welcome(hello):
    return Verdict.ACCEPTED


def ended(dialogue, heard, said):
    """Take a dialogue as far as it goes without hearing more; returns its end, or None while it waits."""
    try:
        while True:
            step = next(dialogue) if heard is None else dialogue.send(heard)
            heard = None
            if isinstance(step, int):
                return None, step
            said.append(step)
    except StopIteration as stop:
        return stop.value, 0
    except TransportError as error:
        return error, 0


def spoken(connector, acceptor, tamper=lambda words, data: data):
    """Let two dialogues talk; returns how each ended (a hello or an error; None if it still waits)."""
    dialogues = [connector, acceptor]
    ends, wants, inbox = [None, None], [0, 0], [b"", b""]
    words = 0
    for turn in (0, 1) * 4:
        if ends[turn] is not None or len(inbox[turn]) < wants[turn]:
            continue
        data = inbox[turn][: wants[turn]] if wants[turn] else None
        inbox[turn] = inbox[turn][wants[turn] :]
        said = []
        ends[turn], wants[turn] = ended(dialogues[turn], data, said)
        for step in said:
            inbox[1 - turn] += tamper(words, step)
            words += 1
    return ends


def test_two_ranks_with_one_key_learn_each_others_rank():
    there, here = spoken(connecting(RANK_3, 1), accepting(RANK_1, welcome))
    assert (there.rank, there.incarnation, there.role) == (1, 11, Role.ACCEPTOR)
    assert (here.rank, here.incarnation, here.role) == (3, 33, Role.CONNECTOR)


def test_two_endpoints_with_one_key_learn_each_others_address():
    there, here = spoken(connecting(PARTY_3, 1000), accepting(PARTY_1, welcome))
    assert there.party == ("tcp://[fd00::1]:1000", 11) and there.role is Role.ACCEPTOR
    assert here.party == ("tcp://10.0.0.3:3000", 33) and here.role is Role.CONNECTOR


def test_an_endpoint_that_wants_another_port_is_refused_with_both_ports():
    for end in spoken(connecting(PARTY_3, 1001), accepting(PARTY_1, welcome)):
        assert isinstance(end, RendezvousError) and "port wanted: 1001, reached: 1000" in str(end)


def test_a_rank_and_an_endpoint_refuse_each_other():
    assert isinstance(spoken(connecting(RANK_3, 1), accepting(PARTY_1, welcome))[1], WireError)
    connector, said = connecting(PARTY_3, 1000), []
    ended(connector, None, said)
    with pytest.raises(WireError, match="expected: b'PPLN'"):
        RANK_1.parse(said[0].ljust(HELLO.size), Role.CONNECTOR)


@pytest.mark.parametrize("key", [b"", b"secreT", b"secret\n"])
def test_another_key_is_an_authentication_error_on_both_sides_with_the_remedy(key):
    for connector, acceptor in [(replace(RANK_3, shared_key=key), RANK_1), (RANK_3, replace(RANK_1, shared_key=key))]:
        ends = spoken(connecting(connector, 1), accepting(acceptor, welcome))
        for end in ends:
            assert isinstance(end, AuthenticationError) and "PIPELINED_KEY_FILE" in str(end)
        assert ends[1].caller == "rank 3"


def test_a_process_of_another_run_is_refused():
    stranger = replace(RANK_3, shared_key=b"", run=digest("another"))
    assert spoken(connecting(stranger, 1), accepting(RANK_1, welcome))[1].caller == "an unknown caller"


@pytest.mark.parametrize(
    ("connector", "peer", "message"),
    [
        (replace(RANK_3, run=digest("job/1")), 1, "another run"),
        (replace(RANK_3, world_size=8), 1, "rank 3: 8, rank 1: 4"),
        (RANK_3, 2, "wanted rank 2, connected to rank 1"),
    ],
)
def test_a_rank_of_another_world_is_refused_with_the_reason_on_both_sides(connector, peer, message):
    for end in spoken(connecting(connector, peer), accepting(RANK_1, welcome)):
        assert isinstance(end, RendezvousError) and message in str(end)


def test_a_hello_is_judged_only_after_its_proof():
    asked = []
    spoken(connecting(replace(RANK_3, shared_key=b"no"), 1), accepting(RANK_1, asked.append))
    assert not asked
    ends = spoken(connecting(RANK_3, 1), accepting(RANK_1, lambda hello: Verdict.UNEXPECTED))
    assert all("rank 1 does not expect rank 3" in str(end) for end in ends)


def test_a_recorded_handshake_cannot_be_replayed():
    overheard = []
    ends = spoken(connecting(RANK_3, 1), accepting(RANK_1, welcome), lambda words, data: overheard.append(data) or data)
    assert ends[1].rank == 3
    hello, _, proof, _ = overheard
    acceptor = accepting(RANK_1, welcome)
    assert ended(acceptor, None, []) == (None, HELLO.size)
    assert ended(acceptor, hello, []) == (None, PROOF_BYTES)
    assert isinstance(ended(acceptor, proof, [])[0], UnprovenKey)


def test_a_reflected_hello_is_refused():
    acceptor, said = accepting(RANK_1, welcome), []
    ended(acceptor, None, said)
    ended(acceptor, next(connecting(RANK_3, 1)), said)
    mirror = accepting(RANK_1, welcome)
    ended(mirror, None, [])
    assert isinstance(ended(mirror, said[0], [])[0], WireError)


def test_a_welcome_from_an_unauthenticated_acceptor_is_refused():
    connector, said = connecting(RANK_3, 1), []
    ended(connector, None, said)
    ended(connector, replace(RANK_1, shared_key=b"").hello(Role.ACCEPTOR, 3).pack(), said)
    end, _ = ended(connector, VERDICT.pack(Verdict.ACCEPTED, bytes(PROOF_BYTES)), said)
    assert isinstance(end, AuthenticationError) and "rank 1 could not prove" in str(end)


def test_a_false_acceptor_that_returns_the_connectors_own_proof_is_not_believed():
    """The role is part of every proof; without it this acceptor, which holds no key, would be admitted."""
    connector, said = connecting(RANK_3, 1), []
    ended(connector, None, said)
    ended(connector, replace(RANK_1, shared_key=b"").hello(Role.ACCEPTOR, 3).pack(), said)
    _, proof = said
    end, _ = ended(connector, VERDICT.pack(Verdict.ACCEPTED, proof), said)
    assert isinstance(end, AuthenticationError) and "rank 1 could not prove" in str(end)


def test_a_connector_with_another_key_gets_no_proof_of_the_acceptors():
    """A proof sent to a stranger would let it test guesses of the key at leisure."""
    said = []
    stranger = replace(RANK_3, shared_key=b"")
    spoken(connecting(stranger, 1), accepting(RANK_1, welcome), lambda words, data: said.append(data) or data)
    assert said[-1] == VERDICT.pack(Verdict.WRONG_KEY, bytes(PROOF_BYTES))


@pytest.mark.parametrize(("connector", "peer", "acceptor"), PAIRS, ids=["ranks", "endpoints"])
@given(word=st.integers(0, 3), place=st.integers(0, HELLO.size - 1), mask=st.integers(1, 255))
def test_a_connector_admits_no_end_if_any_byte_was_changed(connector, peer, acceptor, word, place, mask):
    def tamper(words, data):
        if words != word:
            return data
        changed = bytearray(data)
        changed[place % len(data)] ^= mask
        return bytes(changed)

    ends = spoken(connecting(connector, peer), accepting(acceptor, welcome), tamper)
    assert any(isinstance(end, TransportError) for end in ends)
    assert not isinstance(ends[0], Hello)


@given(st.binary(max_size=400), st.sampled_from(["connector", "acceptor"]))
def test_garbage_ends_in_an_error_and_never_sets_a_length(garbage, side):
    dialogue = connecting(RANK_3, 1) if side == "connector" else accepting(RANK_1, welcome)
    end, want = ended(dialogue, None, [])
    while end is None and len(garbage) >= want:
        assert 0 < want <= HELLO.size
        data, garbage = garbage[:want], garbage[want:]
        end, want = ended(dialogue, data, [])
    assert end is None or isinstance(end, WireError)


def test_another_version_is_named_with_both_numbers():
    acceptor = accepting(RANK_1, welcome)
    next(acceptor)
    hello = bytearray(RANK_3.hello(Role.CONNECTOR, 1).pack())
    hello[4] = 9
    with pytest.raises(WireError, match=r"here: 4, there: 9"):
        acceptor.send(bytes(hello))
