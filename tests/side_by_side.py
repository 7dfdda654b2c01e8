"""Test files on the workers of pytest-xdist (`-n 2`) at once, but those with limits of real time one after another.

A file goes to one worker whole. Files that run alone come last: when all others are done, one worker takes them, and
nothing else runs beside.
"""

from xdist.scheduler import LoadFileScheduling

from tests.alone import runs_alone


class SideBySide(LoadFileScheduling):
    """Each worker takes the next file; the one that is left at the end takes those that run alone."""

    def __init__(self, config, log=None):
        super().__init__(config, log)
        config.option.loadscopereorder = False  # the collection's order has those that run alone last

    def _assign_work_unit(self, node):
        if runs_alone(next(iter(self.workqueue))):
            others = [other for other in self.nodes if other is not node]
            if any(not other.shutting_down for other in others):
                node.shutdown()
                return
            if any(self._pending_of(self.assigned_work[other]) for other in others):
                return
        super()._assign_work_unit(node)

    def mark_test_complete(self, node, item_index, duration=0):
        super().mark_test_complete(node, item_index, duration)
        for other in self.nodes:
            if other is not node:
                self._reschedule(other)  # it may wait for the end of this test
