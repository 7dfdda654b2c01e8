"""What holds in every story of Ravnest after every frame: of nodes and their worlds, and of the directory's records."""

from pipelined.ravnest.records import Clusters

WAITING = 64
"""Messages and buffers that may wait at one rank of a world: of the few microbatches alive, and of one round."""


class Invariants:
    """Checks a story at every frame that the virtual network delivers.

    A broken one is kept, and raised by `hold`, because the frame is delivered in the middle of an actor's work.
    """

    def __init__(self, story):
        self._story, self._broken, self._seen, self._last, self._revision = story, [], 0, (0, 0, 0), -1

    def after(self, event):
        """Check all that a frame may have changed."""
        self._seen += 1
        if event.destination in self._story.nodes:
            self._waiting_is_bounded(event.destination)
        view = getattr(self._story, "view", None)
        if view is not None and view.revision != self._revision:
            self._revision = view.revision
            if view.clusters is not None:
                self._an_incarnation_is_in_one_place(view.clusters)
                self._rounds_rise(view)
                self._delays_are_bounded(view)

    def hold(self):
        """Raise what was broken first."""
        assert self._seen and not self._broken, self._broken[0]

    def _expect(self, is_so, fact):
        if not is_so:
            self._broken.append(fact)

    def _an_incarnation_is_in_one_place(self, clusters: Clusters):
        numbers = [each.incarnation for each in clusters.all_holders]
        self._expect(len({*numbers}) == len(numbers), f"an incarnation is in two places ({clusters.all_holders})")

    def _rounds_rise(self, view):
        record = view.round_of(view.clusters)
        now = view.clusters.number, record.number, len(record.refused)
        self._expect(now >= self._last, f"committed rounds fell (from {self._last} to {now})")
        self._expect(record.number not in view.refused(view.clusters), f"round {record.number} is both")
        self._last = now

    def _delays_are_bounded(self, view):
        """No stage is more than K_s - 1 updates late."""
        for number, row in enumerate(view.clusters.rows):
            found = view.progress.get(f"{number}")
            if found is not None and found.clusters == view.clusters.number:
                late = [(delay, place.alive) for delay, place in zip(found.staleness, row, strict=False)]
                self._expect(all(delay <= alive - 1 for delay, alive in late), f"delays and microbatches alive: {late}")

    def _waiting_is_bounded(self, name):
        for world in self._story.nodes[name]._member.worlds._worlds.values():
            found = [*world.inboxes.messages._arrived.values(), *world.inboxes.buffers._arrived.values()]
            waiting = sum(len(each) for peers in found for each in peers.values())
            self._expect(waiting <= WAITING, f"{waiting} messages wait at {name} in {world.name}")
