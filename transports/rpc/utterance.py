"""One frame to be said, and how far it is: whole where it is short, else a head and then parts of its body.

The one rule: its views are of its sayer's memory until they have been given to a writer. Knows the wire, no writer.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence

from transports.tcp.writer import Outgoing
from transports.wire.frames import Kind, encode_bare


class Utterance:
    """What was said and is not out yet.

    Args:
        name: its kind and number, by which it is withdrawn.
        lane: inside which its order is kept.
        stream: names its parts; 0 where its body goes in its frame.
        out: to be called when it is out.

    Attributes:
        begun: whether any of it has been given to the writer.
        writing: its frames that the writer has and has not written.
    """

    __slots__ = ("_head", "_views", "begun", "lane", "name", "out", "stream", "writing")

    def __init__(
        self,
        name: tuple[Kind, int],
        lane: Hashable,
        head: bytes,
        views: Sequence[memoryview],
        stream: int,
        out: Callable[[], None],
    ):
        self.name, self.lane, self.stream, self.out = name, lane, stream, out
        self.begun = False
        self.writing: dict[Outgoing, None] = {}
        self._head, self._views = head, deque(views)

    @property
    def given(self) -> bool:
        """Whether all of it has been given to the writer."""
        return self.begun and not self._views

    def part(self, most: int) -> list[bytes | memoryview]:
        """Its next frame: the first one, or up to so many bytes of its body behind the head of a part."""
        if not self.begun:
            self.begun = True
            return [self._head, *([] if self.stream else self._take(len(self._head) + most))]
        views = self._take(most)
        return [encode_bare(Kind.PART, self.stream, sum(map(len, views))), *views]

    def drop(self) -> None:
        """Let go of what has not been given."""
        self._views.clear()

    def _take(self, most: int) -> list[memoryview]:
        found = []
        while self._views and most:
            view = self._views.popleft()
            if view.nbytes > most:
                self._views.appendleft(view[most:])
                view = view[:most]
            found.append(view)
            most -= view.nbytes
        return found
