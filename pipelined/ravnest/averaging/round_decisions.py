"""What the nodes of a generation agree on: its committed and refused rounds, and whether it ends. No torch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pipelined.ravnest.records.progress import RoundEnd

T = TypeVar("T")


class RoundDecisions(ABC):
    """The committed rounds of a generation, and whether it ends for another to follow.

    The directory has them (`ClusterRecords`); in a replay the process that does all again (`LocalDecisions`).
    """

    @abstractmethod
    def ends(self) -> bool:
        """Whether the generation ends; no further round of it is committed."""

    @abstractmethod
    async def wait_for_end(self) -> int:
        """Wait until the generation ends; returns how many of its rounds are committed."""

    @abstractmethod
    async def commit(self, round_: int) -> None:
        """Commit a round, unless it is refused or the generation ends."""

    @abstractmethod
    async def refuse(self, round_: int, cluster: int, fact: str) -> None:
        """Refuse a round, unless it is committed or the generation ends.

        Args:
            cluster: that sent what is refused.
        """

    @abstractmethod
    def sender_of(self, round_: int) -> int | None:
        """The cluster that sent what was refused in a round; None: it is not refused."""

    @abstractmethod
    async def attempt(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of work with other clusters; None: the generation ends first, also where it failed."""

    @abstractmethod
    async def complete(self, round_: int, work: Coroutine[Any, Any, None], has_average: Callable[[], bool]) -> RoundEnd:
        """Take part in a round by this work; returns how it ends.

        Args:
            has_average: whether this node has the average; the other holder of its place may commit the round before.
        """
