"""Deadlock detection: whether all workers reach their ends, given messages, limited mailboxes and gradient sums.

A worker waits for a message, for room in its mailbox, or for other workers in a sum. Each of these, once available,
stays available to that worker: a message has one receiver, only its owner fills a mailbox, and a worker that has joined
a sum never leaves it. So the order in which workers proceed does not matter, and one dry run decides for every timing.
Nothing is executed and no time passes; the program must be complete.

A **mailbox** of c messages: a worker keeps each message that it sends until the receiver requests it, that is, reaches
the instruction that takes it. The worker proceeds past a send only while at most c of its messages are not requested
yet; at c = 0 it waits until the receiver requests the message just made. A message to the same worker needs no room.
(With mailboxes at the receiver, filled in order of arrival, the timing might decide. With c = 0 both are the same.)

**Sums**: at a gradient sum a worker joins the sum of that stage. A sum that runs as a task of its own blocks no worker
before the end of the step, and there every worker has joined all of its sums; so it adds no cycle. A blocking sum
blocks the worker until all workers with a gradient of that stage have joined; each of them needs a sum in the program.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from pipelined.programs.addresses import MESSAGE_KINDS
from pipelined.programs.instructions import Instruction, Position, Program, Token
from pipelined.programs.text_drawing import fault_grid


@dataclass(frozen=True)
class ProofLimits:
    """What may block a worker besides the messages that it takes.

    Args:
        mailbox: sent messages that a worker may keep before their receivers request them; None: any number.
        blocking_sums: a worker waits in a stage's gradient sum until all its workers have joined.
    """

    mailbox: int | None = None
    blocking_sums: bool = False


def find_deadlock(program: Program, limits: ProofLimits) -> str | None:
    """The reason why a complete program cannot end, or None if it always ends.

    Returns: the workers of one cycle, what each waits for, and a grid with arrows at these instructions.
    Cost: one pass over the instructions; if the mailbox is too small a few more, to find a sufficient size.
    """
    dry_run = _DryRun(program, limits)
    if dry_run.ends():
        return None
    cycle, notes = dry_run.cycle()
    fact = f"the order deadlocks (workers in the cycle: {cycle}{_format_limits(limits)}); {_remedy(program, limits)}"
    return f"{fact}\n{fault_grid(program, notes)}"


def smallest_mailbox(program: Program, blocking_sums: bool = False) -> int | None:
    """The smallest mailbox, in messages, with which a complete program ends; None if no size is enough.

    A larger mailbox never causes a deadlock, so a binary search finds the size.
    """
    low = 0
    high = max(len(worker) for worker in program.workers)
    if not _DryRun(program, ProofLimits(high, blocking_sums)).ends():
        return None
    while low < high:
        middle = (low + high) // 2
        ends = _DryRun(program, ProofLimits(middle, blocking_sums)).ends()
        low, high = (low, middle) if ends else (middle + 1, high)
    return low


def _format_limits(limits: ProofLimits) -> str:
    """The limits, as a part of the error message."""
    room = "" if limits.mailbox is None else f", mailbox: {limits.mailbox}"
    return room + (", sums block" if limits.blocking_sums else "")


def _remedy(program: Program, limits: ProofLimits) -> str:
    size = None if limits.mailbox is None else smallest_mailbox(program, limits.blocking_sums)
    if size is not None:
        return f"give mailboxes room for {size}, or move one of these"
    return "let sums be tasks of their own, or move one of these" if limits.blocking_sums else "move one of these"


class _DryRun:
    """Advance every worker as far as possible; each worker that remains waits for another one that remains."""

    def __init__(self, program: Program, limits: ProofLimits):
        self.program = program
        self.depth = program.stage_map.depth
        self.room = math.inf if limits.mailbox is None else limits.mailbox
        self.positions = [0] * len(program.workers)
        self.has_begun = [False] * len(program.workers)
        self.token_makers: dict[Token, int] = {}  # the worker that made each token that no instruction has taken yet
        self.unrequested_tokens: list[set[Token]] = [set() for _ in program.workers]
        self.waiting_workers: dict[Token, int] = {}
        self.absent_by_stage = defaultdict(set)  # stage to the workers that have not joined its sum
        for (worker, _), instruction in program.instructions():
            if limits.blocking_sums and instruction.op in "BW":
                self.absent_by_stage[instruction.stage].add(worker)
        self.ready_workers = list(range(len(program.workers)))

    def ends(self) -> bool:
        """Whether every worker reaches its end."""
        while self.ready_workers:
            self._advance(self.ready_workers.pop())
        rows = zip(self.positions, self.program.workers, strict=True)
        return all(position == len(instructions) for position, instructions in rows)

    def _advance(self, worker: int) -> None:
        while self.positions[worker] < len(self.program.workers[worker]):
            if not self.has_begun[worker] and not self._start(worker):
                return
            if len(self.unrequested_tokens[worker]) > self.room or self._absent_workers(self._next_instruction(worker)):
                return
            self.positions[worker] += 1
            self.has_begun[worker] = False

    def _start(self, worker: int) -> bool:
        """Take the tokens of the next instruction and leave those that it makes; False if a token is missing."""
        instruction = self._next_instruction(worker)
        missing_token = self._missing_token(instruction)
        if missing_token is not None:
            self.waiting_workers[missing_token] = worker
            return False
        for token in instruction.takes(self.depth):
            maker = self.token_makers.pop(token)
            if token in self.unrequested_tokens[maker]:
                self.unrequested_tokens[maker].remove(token)
                self.ready_workers.append(maker)
        for token in instruction.gives(self.depth):
            self._leave(worker, token)
        self.has_begun[worker] = True
        self._join(worker, instruction)
        return True

    def _leave(self, worker: int, token: Token) -> None:
        self.token_makers[token] = worker
        if token[0] in MESSAGE_KINDS and self.program.stage_map.placement[token[1:3]] != worker:
            self.unrequested_tokens[worker].add(token)
        if token in self.waiting_workers:
            self.ready_workers.append(self.waiting_workers.pop(token))

    def _join(self, worker: int, instruction: Instruction) -> None:
        absent_workers = self._absent_workers(instruction)
        if worker in absent_workers:
            absent_workers.remove(worker)
            self.ready_workers += [] if absent_workers else range(len(self.program.workers))

    def _absent_workers(self, instruction: Instruction) -> set[int]:
        """The workers that a sum waits for; none for any other instruction."""
        return set() if instruction.computes else self.absent_by_stage[instruction.stage]

    def _next_instruction(self, worker: int) -> Instruction:
        return self.program.workers[worker][self.positions[worker]]

    def _missing_token(self, instruction: Instruction) -> Token | None:
        return next((token for token in instruction.takes(self.depth) if token not in self.token_makers), None)

    def cycle(self) -> tuple[list[int], dict[Position, str]]:
        """A cycle of workers, each waiting for the next, the last for the first; and a note at the position of each."""
        waits = {w: self._waits_for(w) for w, row in enumerate(self.program.workers) if self.positions[w] < len(row)}
        cycle = []
        worker = min(waits)
        while worker not in cycle:
            cycle.append(worker)
            worker = waits[worker][0]
        cycle = cycle[cycle.index(worker) :]
        return cycle, {(worker, self.positions[worker]): waits[worker][1] for worker in cycle}

    def _waits_for(self, worker: int) -> tuple[int, str]:
        """A worker that the blocked `worker` waits for, and the reason in words."""
        instruction = self._next_instruction(worker)
        if not self.has_begun[worker]:
            missing_token = self._missing_token(instruction)
            return self._first_worker(lambda _, i: missing_token in i.gives(self.depth), "waits for")
        if len(self.unrequested_tokens[worker]) > self.room:
            message = next(token for token in instruction.gives(self.depth) if token in self.unrequested_tokens[worker])
            reason = f"cannot go on after its send (not requested: {len(self.unrequested_tokens[worker])}) before"
            return self._first_worker(lambda _, i: message in i.takes(self.depth), reason)
        absent_workers = self._absent_workers(instruction)
        words = f"waits in the sum of stage {instruction.stage} for"
        return self._first_worker(lambda position, i: i == instruction and position[0] in absent_workers, words)

    def _first_worker(self, predicate: Callable[[Position, Instruction], bool], reason: str) -> tuple[int, str]:
        """The worker of the first instruction that `predicate` accepts, and the reason with its name."""
        (worker, position), instruction = next(entry for entry in self.program.instructions() if predicate(*entry))
        return worker, f"{reason} {instruction!r}, instruction {position} of worker {worker}"
