"""The members of a swarm and its committed step, as this process last read them from the directory."""

from collections.abc import Iterable

from pipelined.aio.clock import Clock
from pipelined.directory import Directory, Entry
from pipelined.membership.view import Single, Table
from pipelined.state.fetch import VersionedView
from pipelined.state.versions import SAVED, SavedStages, Version
from pipelined.swarm.config import OtherModel
from pipelined.swarm.records.steps import (
    EVALUATED,
    HEAD,
    LOST,
    STEP_MEMBERS,
    Commit,
    Evaluation,
    LostStages,
    StepMembers,
    members_key,
)


class SwarmView(VersionedView):
    """A membership view that also follows the committed step, and what was saved and measured.

    Attributes:
        head_revision: of the head's key, also of a record that cannot be read, so that the leader can write the next
            step over it; 0: no such key.
        saved: by name, the steps that peers have on disk; filled only if `stages` is None.
        step_members: the members of the last summed step, by the rest of their keys.
    """

    def __init__(self, directory: Directory, clock: Clock, stages: frozenset[int] | None = None):
        super().__init__(directory, clock, stages)
        self.head_revision = 0
        self.saved, self.step_members = Table(SavedStages), Table(StepMembers, keeps=False)
        self._evaluated, self._lost = Single(Evaluation), Single(LostStages)
        self._head: Commit | None = None  # without its members
        self._head_with_members: Commit | None = None  # None: to be joined again
        self._tables |= {
            HEAD: self._apply_head,
            STEP_MEMBERS: self._apply_members,
            LOST: self._lost.apply,
            SAVED: self.saved.apply,
            EVALUATED: self._evaluated.apply,
        }

    @property
    def head(self) -> Commit | None:
        """The committed step; None before the first one.

        If its record is deleted or cannot be read, this is still the previous one.
        """
        if self._head_with_members is None and self._head is not None:
            self._head_with_members = self._head.with_members(self.step_members.values())
        return self._head_with_members

    @property
    def committed(self) -> Commit:
        """The committed step, for code that runs only after the first one.

        Raises:
            RuntimeError: no head was read yet.
        """
        head = self.head
        if head is None:
            raise RuntimeError("no committed step was read yet; wait for the head first")
        return head

    @property
    def version(self) -> Version:
        """The committed version. Raises RuntimeError: no head was read yet."""
        return self.committed.version

    async def wait_for_model(self, model: str) -> Commit:
        """Wait until there is a committed step, and return it.

        Raises:
            OtherModel: it is of another model than the one with this digest.
        """
        head = await self.wait_for(lambda: self.head)
        if head.model != model:
            raise OtherModel(model, head.model)
        return head

    @property
    def evaluated(self) -> Evaluation | None:
        """The last loss on validation data; None before the first one."""
        return self._evaluated.record

    @property
    def evaluated_revision(self) -> int:
        """Of its key, for transactions; 0: no such key."""
        return self._evaluated.revision

    @property
    def lost(self) -> frozenset[int]:
        """The stages of which no peer holds the state, as last written by the leader."""
        return frozenset(self._lost.record.stages if self._lost.record else ())

    @property
    def lost_revision(self) -> int:
        """Of its key, for transactions; 0: no such key."""
        return self._lost.revision

    def _apply_head(self, name: str, entry: Entry | None) -> None:
        self.head_revision = entry.revision if entry else 0
        if entry is not None:
            self._head, self._head_with_members = Commit.unpack(entry.value), None

    def _apply_members(self, name: str, entry: Entry | None) -> None:
        self._head_with_members = None
        self.step_members.apply(name, entry)

    def _keys_of(self, stages: Iterable[int]) -> set[str]:
        return super()._keys_of(stages) | {HEAD, LOST, *map(members_key, stages)}
