"""What holds in every story of Ravnest after every frame: of nodes and their worlds, and of the directory's records."""

from collections import defaultdict
from dataclasses import dataclass, field, replace

from pipelined.ravnest.node.cluster_member import ClusterMember
from pipelined.ravnest.records.generation import Generation
from pipelined.traces.tracer import NullTracer

WAITING = 64
"""Messages and buffers that may wait at one rank of a world: of the few microbatches alive, and of one round."""


class Invariants:
    """Checks a story at every frame that the virtual network delivers, and after every computation of a stage.

    A broken one is kept, and raised by `hold`, because the frame is delivered in the middle of an actor's work.

    Attributes:
        frames, backwards: how many were checked.
    """

    def __init__(self, story):
        self._story, self._broken, self._last, self._revision = story, [], (0, 0, 0), -1
        self.frames, self.backwards, self.steps = 0, 0, StepsOfClusters(story.own_steps_averaged, self.expect)

    def after(self, event):
        """Check all that a frame may have changed."""
        self.frames += 1
        if event.destination in self._story.nodes:
            self._waiting_is_bounded(event.destination)
        view = getattr(self._story, "view", None)
        if view is not None and view.revision != self._revision:
            self._revision = view.revision
            while self._story.formed:
                self.steps.follow(Generation.unpack(self._story.formed.popleft().entry.value))
            if view.generation is not None:
                self._an_incarnation_is_in_one_place(view.generation)
                self._rounds_rise(view)
                self._delays_are_bounded(view)

    def hold(self):
        """Raise what was broken first."""
        assert not self._broken, self._broken[0]
        assert self.frames and (self.backwards or not self._story.seen), "nothing was checked"

    def expect(self, is_so, fact):
        """Keep this fact if it is not so."""
        if not is_so:
            self._broken.append(fact)

    def _an_incarnation_is_in_one_place(self, generation: Generation):
        numbers = [each.incarnation for each in generation.all_holders]
        self.expect(len({*numbers}) == len(numbers), f"an incarnation is in two places ({generation.all_holders})")

    def _rounds_rise(self, view):
        record = view.round_of(view.generation)
        now = view.generation.number, record.number, len(record.refused)
        self.expect(now >= self._last, f"committed rounds fell (from {self._last} to {now})")
        self.expect(record.number not in view.refused(view.generation), f"round {record.number} is both")
        self._last = now

    def _delays_are_bounded(self, view):
        """No step that is shown was more than K_s - 1 updates late in any stage."""
        for number, row in enumerate(view.generation.clusters):
            found = view.progress.get(f"{number}")
            if found is not None and found.generation == view.generation.number:
                late = [(delay, place.alive) for delay, place in zip(found.staleness, row, strict=False)]
                self.expect(all(delay <= alive - 1 for delay, alive in late), f"delays and microbatches alive: {late}")

    def _waiting_is_bounded(self, name):
        for world in self._story.nodes[name]._member.worlds._worlds.values():
            found = [*world.state.inboxes.messages._arrived.values(), *world.state.inboxes.buffers._arrived.values()]
            waiting = sum(len(each) for peers in found for each in peers.values())
            self.expect(waiting <= WAITING, f"{waiting} messages wait at {name} in {world.name}")


class StepsOfClusters:
    """A step counts in one cluster only: of those that train at a time, and of those that go on from them.

    Args:
        own_done: of clusters, the number of one and a round, the steps by its own count that are in this average.
        expect: see `Invariants`.
    """

    def __init__(self, own_done, expect):
        self._own_done, self._expect, self._generations = own_done, expect, {}
        self._begun, self._before, self._counted = {}, {}, defaultdict(set)

    def count(self, generation, cluster, own):
        """A stage of this cluster was updated by its own step."""
        number, step = generation.number, generation.step_of(cluster, own)
        for other in range(len(generation.clusters)):
            if other != cluster:
                self._expect(step not in self._counted[number, other], f"clusters {number}: two count step {step}")
        self._counted[number, cluster].add(step)
        self._expect(step not in self._before.get(number, ()), f"clusters {number} count step {step} again")

    def follow(self, generation):
        """These clusters go on from others, or from a save."""
        number, step, again = generation.number, generation.start.step, {*generation.continuation.steps_to_repeat}
        begun = [{*range(step)} for _ in generation.clusters]
        if generation.continuation.previous:
            before = self._generations[generation.continuation.previous]
            found = {
                generation.place_before(before, n): self._held(before, n, generation)
                for n in range(len(before.clusters))
            }
            begun = [found.get(here, set()) for here in range(len(generation.clusters))]
        self._generations[number], self._begun[number], self._before[number] = generation, begun, set().union(*begun)
        rest = {*range(step + len(again))} - again
        fact = f"clusters {number} begin with {sorted(self._before[number])}, and train again {sorted(again)} of {step}"
        self._expect(self._before[number] == rest, fact)

    def _held(self, before, number, generation):
        """The steps in the parameters of a cluster when it ended: its own, and those of the last average."""
        begun, rounds, many = self._begun[before.number], generation.continuation.rounds, range(len(before.clusters))
        held = begun[number] | self._counted[before.number, number]
        for each in many if rounds else ():
            own = range(self._own_done(before, each, rounds))
            held |= begun[each] | {before.step_of(each, step) for step in own}
        return held


class AliveTracer(NullTracer):
    """Counts at each computation of a stage the microbatches alive, and the updates since their forwards."""

    def __init__(self, invariants, generation, place):
        super().__init__()
        self._invariants, self._generation, self._place = invariants, generation, place
        self._updates, self._forwards = 0, {}

    def record(self, category, name, start, end, coordinates=()):
        if name not in ("forward", "backward"):
            return
        step, _, microbatch, _ = coordinates
        cluster, stage = self._place
        most, expect = self._generation.clusters[cluster][stage].alive, self._invariants.expect
        at = f"cluster {cluster}, stage {stage}, step {step}, microbatch {microbatch}"
        if name == "forward":
            self._forwards[step, microbatch] = self._updates
            expect(len(self._forwards) <= most, f"{len(self._forwards)} microbatches are alive, not {most} ({at})")
        else:
            late = self._updates - self._forwards.pop((step, microbatch))
            expect(late <= most - 1, f"{late} updates late, with {most} microbatches alive ({at})")
            self._updates += 1
            self._invariants.backwards += 1
            self._invariants.steps.count(self._generation, cluster, step)


@dataclass(frozen=True)
class WatchedMember(ClusterMember):
    """A node in one of its clusters, of which each computation is checked."""

    invariants: Invariants | None = field(default=None, kw_only=True)

    async def train(self, generation, place, **others):
        """See `ClusterMember.train`."""
        watched = replace(self, tracer=AliveTracer(self.invariants, generation, place))
        return await ClusterMember.train(watched, generation, place, **others)
