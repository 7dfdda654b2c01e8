"""Whatever is told in whatever order, a microbatch that a stage misses is with somebody or is to be had."""

from hypothesis import given
from hypothesis import strategies as st

from pipelined.swarm.board import Assignment, Board

BATCH, STAGES = 4, 2
SLOTS, PEERS = ["t0/0", "t0/1", "t1/0"], ["p0", "p1", "p2"]
INDICES = st.integers(0, BATCH - 1)
COUNTED = st.dictionaries(st.integers(0, STAGES - 1), st.sampled_from(PEERS))
EVENTS = st.one_of(
    st.tuples(st.just("take"), st.sampled_from(SLOTS)),
    st.tuples(st.just("done"), st.sampled_from(SLOTS), INDICES, COUNTED),
    st.tuples(st.just("give_back"), st.sampled_from(SLOTS).map(lambda slot: slot.__eq__)),
    st.tuples(st.just("forget"), st.sampled_from(PEERS), st.sampled_from(["", *PEERS])),
    st.tuples(st.just("settle"), st.lists(st.sets(INDICES), min_size=STAGES, max_size=STAGES)),
)


def through(board, peer="p0"):
    """One slot takes all that there is and has it counted by one peer; what was given, in order."""
    given = []
    while (assignment := board.take("slot")) is not None:
        given.append(assignment)
        board.done("slot", assignment.index, dict.fromkeys(assignment.stages, peer))
    return given


def test_each_microbatch_is_given_once_for_all_stages():
    board = Board(3, 2)
    assert through(board) == [Assignment(index, (0, 1)) for index in range(3)]
    assert board.complete and not board.left


def test_what_was_not_counted_somewhere_is_given_again_for_that_stage():
    board = Board(1, 2)
    board.take("slot")
    board.done("slot", 0, {1: "p0"})
    assert board.take("slot") == Assignment(0, (0,))


def test_who_has_it_no_longer_is_not_believed():
    board = Board(1, 1)
    board.take("slow")
    board.give_back(lambda slot: slot == "slow")
    assert board.take("other") == Assignment(0, (0,))
    board.done("slow", 0, {0: "p0"})
    assert not board.complete


def test_what_a_lost_peer_had_is_given_again():
    board = Board(2, 1)
    through(board)
    board.forget("p0")
    assert [given.index for given in through(board)] == [0, 1]


def test_what_was_handed_over_goes_with_its_heir():
    board = Board(2, 1)
    through(board)
    board.forget("p0", "p1")
    assert board.complete
    board.forget("p1")
    assert board.left == 2


def test_ledgers_overrule_what_trainers_told():
    board = Board(3, 2)
    through(board)
    board.settle([{1}, {1, 2}])
    assert through(board) == [Assignment(1, (0, 1)), Assignment(2, (1,))]


@given(st.lists(EVENTS, max_size=30))
def test_nothing_is_lost(events):
    board = Board(BATCH, STAGES)
    for name, *arguments in events:
        getattr(board, name)(*arguments)
    board.give_back(lambda slot: True)
    given = through(board)
    assert board.complete
    assert len({assignment.index for assignment in given}) == len(given), "one was to be had twice"
