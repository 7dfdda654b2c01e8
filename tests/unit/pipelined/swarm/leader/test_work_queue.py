"""After any reports in any order, a microbatch that a stage lacks is assigned to a trainer or open."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from pipelined.aio.latency import MEDIANS, UNMEASURED
from pipelined.swarm.leader.work_queue import Assignment, FirstLate, SlotLatency, WorkQueue
from pipelined.swarm.protocol.work import Score

BATCH, STAGES = 4, 2
SLOTS, PEERS = ["t0/0", "t0/1", "t1/0"], ["p0", "p1", "p2"]
INDICES = st.integers(0, BATCH - 1)
COUNTED = st.dictionaries(st.integers(0, STAGES - 1), st.sampled_from(PEERS))
EVENTS = st.one_of(
    st.tuples(st.just("take"), st.sampled_from(SLOTS)),
    st.tuples(st.just("record_done"), st.sampled_from(SLOTS), INDICES, COUNTED),
    st.tuples(st.just("requeue"), st.sampled_from(SLOTS).map(lambda slot: slot.__eq__)),
    st.tuples(st.just("forget"), st.sampled_from(PEERS), st.sampled_from(["", *PEERS])),
    st.tuples(st.just("reconcile"), st.lists(st.sets(INDICES), min_size=STAGES, max_size=STAGES)),
)


def through(queue, peer="p0"):
    """One slot takes all that there is and has it counted by one peer; what was given, in order."""
    assignments = []
    while (assignment := queue.take("slot")) is not None:
        assignments.append(assignment)
        queue.record_done("slot", assignment.index, dict.fromkeys(assignment.stages, peer))
    return assignments


def test_each_microbatch_is_given_once_for_all_stages():
    queue = WorkQueue(3, 2)
    assert through(queue) == [Assignment(index, (0, 1)) for index in range(3)]
    assert queue.complete and not queue.microbatches_left


def test_what_was_not_counted_somewhere_is_given_again_for_that_stage():
    queue = WorkQueue(1, 2)
    queue.take("slot")
    queue.record_done("slot", 0, {1: "p0"})
    assert queue.take("slot") == Assignment(0, (0,))


def test_it_says_how_long_its_step_was_computed():
    now = [3.0]
    queue = WorkQueue(2, 1, latency=SlotLatency(lambda: now[0], 1.0))
    for index, moment, took in [(0, 5.0, 0.0), (1, 9.0, 6.0)]:
        queue.take("slot")
        now[0] = moment
        queue.record_done("slot", index, {0: "p0"})
        assert queue.duration_s == took


def test_a_late_report_of_a_reassigned_microbatch_is_dropped():
    queue = WorkQueue(1, 1)
    queue.take("slow")
    queue.requeue(lambda slot: slot == "slow")
    assert queue.take("other") == Assignment(0, (0,))
    queue.record_done("slow", 0, {0: "p0"})
    assert not queue.complete


def test_what_a_lost_peer_had_is_given_again():
    queue = WorkQueue(2, 1)
    through(queue)
    queue.forget("p0")
    assert [given.index for given in through(queue)] == [0, 1]


def test_what_was_handed_over_goes_with_its_successor():
    queue = WorkQueue(2, 1)
    through(queue)
    queue.forget("p0", "p1")
    assert queue.complete
    queue.forget("p1")
    assert queue.microbatches_left == 2


def test_ledgers_overrule_reports():
    queue = WorkQueue(3, 2)
    through(queue)
    queue.reconcile([{1}, {1, 2}])
    assert through(queue) == [Assignment(1, (0, 1)), Assignment(2, (1,))]


class Timed:
    """A queue of a step, with a measured second for each slot, and a clock to turn."""

    def __init__(self, batch, held_out=0, latency=None):
        self.now = 0.0
        self.latency = latency or SlotLatency(lambda: self.now, least=2.0)
        self.queue = WorkQueue(batch, 1, held_out, self.latency)

    def through(self, slot, seconds=1.0):
        assignment = self.queue.take(slot)
        self.now += seconds
        self.queue.record_done(slot, assignment.index, dict.fromkeys(assignment.stages, "p0"), Score(0.0, 1))
        return assignment.index


def one_late():
    """A step of two, of which "good" has answered one, and "stuck" is late with the other as of now."""
    timed = Timed(2)
    timed.queue.take("stuck")
    timed.through("good")
    timed.now += timed.queue.seconds_until_late()
    return timed


def test_what_is_late_by_what_others_take_is_given_to_another_and_the_first_answer_counts():
    timed = Timed(3)
    queue = timed.queue
    assert queue.take("stuck").index == 0
    assert [timed.through("good"), timed.through("good")] == [1, 2]
    assert queue.take("good") is None and queue.seconds_until_late() == 4.0 - 2.0
    timed.now += queue.seconds_until_late()
    assert queue.take("good") == Assignment(0, (0,))
    queue.record_done("good", 0, {0: "p0"})
    assert queue.complete
    queue.record_done("stuck", 0, {0: "p9"})
    queue.forget("p9")
    assert queue.complete


def test_while_nothing_was_seen_all_is_waited_for_long_but_not_for_ever():
    timed = Timed(1)
    timed.queue.take("stuck")
    assert timed.queue.take("good") is None and timed.queue.seconds_until_late() == 2.0 * UNMEASURED
    timed.now = 2.0 * UNMEASURED
    assert timed.queue.take("good") == Assignment(0, (0,))


def test_what_was_given_to_two_is_given_to_a_third_only_after_twice_the_time():
    timed = one_late()
    timed.queue.take("stuck too")
    assert timed.queue.seconds_until_late() == 2 * 4.0


def test_a_slot_that_did_not_report_delays_no_later_step():
    timed = one_late()
    timed.through("good")
    after = Timed(3, latency=timed.latency)
    assert after.queue.take("stuck").index == 2
    assert [after.through("good") for _ in range(3)] == [0, 1, 2]
    assert after.queue.complete


def test_a_slot_that_reports_again_is_no_longer_in_doubt():
    timed = one_late()
    timed.through("good")
    after = Timed(3, latency=timed.latency)
    assert [after.through("stuck"), after.through("stuck")] == [2, 0]


def test_the_work_of_doubted_and_lost_slots_is_assigned_again():
    timed = one_late()
    timed.queue.take("lost")
    timed.queue.requeue(lambda slot: slot == "lost")
    assert timed.queue.take("good") == Assignment(0, (0,))


def test_validation_data_is_given_after_the_batch_and_comes_to_one_mean():
    queue = WorkQueue(1, 2, held_out=2)
    assert [queue.take(slot) for slot in "abc"] == [Assignment(0, (0, 1)), Assignment(1, ()), Assignment(2, ())]
    queue.record_done("c", 2, {}, Score(1.5, 1))
    queue.record_done("a", 0, {0: "p0", 1: "p1"})
    assert queue.complete and not queue.scored and queue.microbatches_left == 1
    queue.record_done("b", 1, {}, Score(7.5, 5))
    assert queue.scored and queue.loss == 1.5


def test_validation_data_without_a_score_is_given_again():
    queue = WorkQueue(2, 1, held_out=1, is_over=True)
    assert queue.complete
    for told in (None, Score(1.0, 0)):
        queue.take("slot")
        queue.record_done("slot", 2, {0: "p0"}, told)
        assert not queue.scored
    queue.take("slot")
    queue.requeue(lambda slot: True)
    assert queue.take("other") == Assignment(2, ())


def test_lost_peers_and_ledgers_change_no_score():
    queue = WorkQueue(1, 1, held_out=1)
    queue.take("slot")
    queue.record_done("slot", 0, {0: "p0"})
    queue.take("slot")
    queue.record_done("slot", 1, {}, Score(3.0, 2))
    queue.forget("p0")
    queue.reconcile([{0}])
    assert queue.scored and queue.loss == 1.5 and not queue.complete


@given(st.lists(EVENTS, max_size=30))
def test_nothing_is_lost(events):
    queue = WorkQueue(BATCH, STAGES)
    for name, *arguments in events:
        getattr(queue, name)(*arguments)
    queue.requeue(lambda slot: True)
    assignments = through(queue)
    assert queue.complete
    assert len({assignment.index for assignment in assignments}) == len(assignments), "one was to be had twice"


@given(st.lists(EVENTS, max_size=30))
def test_what_is_left_is_what_is_missing_somewhere(events):
    """A plain model of the same: sets, looked through from end to end."""
    queue, missing = WorkQueue(BATCH, STAGES), [set(range(STAGES)) for _ in range(BATCH)]
    slots, counted = {}, {}
    for name, *arguments in events:
        assignment = getattr(queue, name)(*arguments)
        if name == "take" and assignment is not None:
            assert set(assignment.stages) == missing[assignment.index] and assignment.index not in slots
            slots[assignment.index] = arguments[0]
        elif name == "record_done" and slots.get(arguments[1]) == arguments[0]:
            del slots[arguments[1]]
            missing[arguments[1]] -= arguments[2].keys()
            counted |= {(stage, arguments[1]): peer for stage, peer in arguments[2].items()}
        elif name == "requeue":
            slots = {index: slot for index, slot in slots.items() if not arguments[0](slot)}
        elif name == "forget":
            peer, successor = arguments
            for (stage, index), holder in list(counted.items()):
                if holder == peer and successor:
                    counted[stage, index] = successor
                elif holder == peer:
                    missing[index].add(stage)
                    del counted[stage, index]
        elif name == "reconcile":
            missing = [{stage for stage in range(STAGES) if index in arguments[0][stage]} for index in range(BATCH)]
            counted = {place: peer for place, peer in counted.items() if place[0] not in missing[place[1]]}
    assert queue.microbatches_left == sum(map(bool, missing)) and queue.complete == (not any(missing))


HELD_OUT = 2
ANSWERS = st.tuples(
    st.just("record_done"),
    st.sampled_from(SLOTS),
    st.integers(0, BATCH + HELD_OUT - 1),
    COUNTED,
    st.builds(Score, st.just(1.0), st.integers(0, 1)),
)


class Plain(WorkQueue):
    """A queue that looks through all that is given, whenever it is asked what is late."""

    def _first_late(self):
        moment, index = min(self._late_moments(), default=(math.inf, None))
        return FirstLate(moment, self._assigned.get(index), limits=())


@given(st.lists(st.one_of(EVENTS, ANSWERS, st.tuples(st.just("wait"), st.floats(0, 9))), max_size=40))
@settings(max_examples=200)
def test_late_assignments_equal_a_full_search(events):
    """Of two assignments of one latency, the second only learns what is slow."""
    told = []
    for kind in (WorkQueue, Plain):
        now = [0.0]
        latency = SlotLatency(lambda now=now: now[0], least=5.0)
        for held_out in (False, True):
            latency.observe("t9/8", held_out, 0.0)
        first, second = kind(BATCH, STAGES, HELD_OUT, latency), kind(BATCH, STAGES, 0, latency)
        seen = []
        for name, *arguments in events:
            if name == "wait":
                now[0] += arguments[0]
                second.take("t9/0")
                second.record_done("t9/0", 0, {}, None)
            else:
                seen.append(getattr(first, name)(*arguments))
            seen += [first.seconds_until_late(), first.take("t9/9") if len(seen) % 3 == 0 else None]
        told.append(seen)
    assert told[0] == told[1]


def latency():
    return SlotLatency(lambda: 0.0, least=3.0)


def test_one_answer_is_enough_and_validation_data_is_of_another_kind():
    slots = latency()
    slots.observe("slot", is_evaluation=False, seconds=2.0)
    assert (slots.limit(is_evaluation=False), slots.limit(is_evaluation=True)) == (2.0 * MEDIANS, 3.0 * UNMEASURED)
    slots.observe("slot", is_evaluation=True, seconds=0.1)
    assert (slots.limit(is_evaluation=False), slots.limit(is_evaluation=True)) == (2.0 * MEDIANS, 3.0)


def test_an_answer_ends_the_doubt():
    slots = latency()
    slots.doubt("slot")
    assert slots.doubts("slot") and not slots.doubts("other")
    slots.observe("slot", is_evaluation=True, seconds=1.0)
    assert not slots.doubts("slot")


def test_a_departed_slot_is_no_longer_in_doubt():
    slots = latency()
    slots.doubt("t0/1")
    slots.forget(lambda slot: slot.startswith("t0/"))
    assert not slots.doubts("t0/1")
