"""Programs really executed, one coroutine a worker, over links that keep each message at its sender until asked for.

It knows nothing of the checker's graph: it has messages, rooms and things that were done or not.
"""

import asyncio
from collections import Counter, defaultdict

from pipelined.aio.clock import Deadlock, VirtualClock, run_virtual


class WentWrong(Exception):
    """The execution did something that cannot be done, or left something undone."""


class Outbox:
    """What a worker has sent and no worker has received yet.

    Args:
        room: how much of it lets the worker go on; None: however much.
    """

    def __init__(self, room):
        self.room, self.kept, self.asked = room, [], defaultdict(list)
        self.freed = asyncio.Event()

    async def send(self, message):
        if self.asked[message]:
            self.asked[message].pop().set_result(None)
            return
        self.kept.append(message)
        while self.room is not None and len(self.kept) > self.room:
            self.freed.clear()
            await self.freed.wait()

    async def ask(self, message):
        if message in self.kept:
            self.kept.remove(message)
            self.freed.set()
            return
        answer = asyncio.get_running_loop().create_future()
        self.asked[message].append(answer)
        await answer


class Execution:
    """One step of a program.

    Args:
        delay: drawn from for each computation, request and message.
        mailbox: messages a worker may keep unasked before a send holds it up.
        blocking_sums: a worker waits in each sum until every holder's gradient is there; where the program has no sum
            of a stage, after its last gradient of it.
    """

    def __init__(self, program, delay, mailbox=None, blocking_sums=False):
        self.program, self.stage_map, self.delay = program, program.stage_map, delay
        self.outboxes = [Outbox(mailbox) for _ in range(self.stage_map.workers)]
        self.own = [Outbox(None) for _ in range(self.stage_map.workers)]
        self.stash, self.pending, self.summed = set(), set(), Counter()
        self.said = {(worker, i.stage) for worker, mine in enumerate(program.workers) for i in mine if i.op == "S"}
        self.gradients = [Counter(i.stage for i in mine if i.op in "BW") for mine in program.workers]
        self.absent = Counter(stage for mine in self.gradients for stage in mine)
        self.joined = set()
        self.complete = defaultdict(asyncio.Event)
        self.blocking_sums = blocking_sums

    def run(self):
        """Raises WentWrong or Deadlock unless every stage sums the gradient of each of its microbatches once."""
        run_virtual(self.everyone())
        stage_map = self.stage_map
        everything = Counter((p, s, m) for p, s in stage_map.placement for m in stage_map.microbatches[p])
        left = [outbox.kept for outbox in self.outboxes + self.own if outbox.kept]
        if self.summed != everything or self.stash or self.pending or left:
            raise WentWrong("something was left over or left out")

    async def everyone(self):
        await asyncio.gather(*(self.walk(w, i) for w, i in enumerate(self.program.workers)))

    async def walk(self, worker, instructions):
        for i in instructions:
            if i.op == "S":
                await self.do_S(worker, i.stage)
                continue
            if (i.pipe, i.stage) not in self.stage_map.placement or worker != self.holder(i.pipe, i.stage):
                raise WentWrong("no such stage here")
            if i.microbatch not in self.stage_map.microbatches[i.pipe]:
                raise WentWrong("no such microbatch in this pipe")
            await getattr(self, f"do_{i.op}")(worker, (i.pipe, i.stage, i.microbatch))

    async def do_F(self, worker, place):
        pipe, stage, microbatch = place
        if stage > 0:
            await self.receive(worker, self.holder(pipe, stage - 1), ("activation", place))
        await self.compute()
        self.keep(self.stash, place)
        if stage < self.stage_map.depth - 1:
            await self.send(worker, self.holder(pipe, stage + 1), ("activation", (pipe, stage + 1, microbatch)))

    async def do_B(self, worker, place):
        await self.do_input(worker, place, whole=True)
        await self.sum_unsaid(worker, place[1])

    async def do_I(self, worker, place):
        await self.do_input(worker, place, whole=False)

    async def do_W(self, worker, place):
        await self.compute()
        self.use(self.pending, place)
        self.add(worker, place)
        await self.sum_unsaid(worker, place[1])

    async def do_input(self, worker, place, whole):
        pipe, stage, microbatch = place
        if stage < self.stage_map.depth - 1:
            await self.receive(worker, self.holder(pipe, stage + 1), ("gradient", place))
        await self.compute()
        self.use(self.stash, place)
        if whole:
            self.add(worker, place)
        else:
            self.keep(self.pending, place)
        if stage > 0:
            await self.send(worker, self.holder(pipe, stage - 1), ("gradient", (pipe, stage - 1, microbatch)))

    def add(self, worker, place):
        """Add one gradient to those of its worker."""
        self.summed[place] += 1
        self.gradients[worker][place[1]] -= 1

    async def sum_unsaid(self, worker, stage):
        """Sum a stage of which the program has no sum, once its last gradient is there."""
        if (worker, stage) not in self.said and not self.gradients[worker][stage]:
            await self.do_S(worker, stage)

    async def do_S(self, worker, stage):
        if stage not in self.stage_map.stages_of(worker) or (worker, stage) in self.joined:
            raise WentWrong("no such stage here, or it is summed already")
        if self.gradients[worker][stage]:
            raise WentWrong("a gradient is missing")
        self.joined.add((worker, stage))
        self.absent[stage] -= stage in self.gradients[worker]
        if not self.absent[stage]:
            self.complete[stage].set()
        elif self.blocking_sums:
            await self.complete[stage].wait()

    async def compute(self):
        await VirtualClock().sleep(self.delay())

    async def send(self, worker, receiver, message):
        await (self.own if worker == receiver else self.outboxes)[worker].send(message)

    async def receive(self, worker, sender, message):
        await VirtualClock().sleep(self.delay())
        await (self.own if worker == sender else self.outboxes)[sender].ask(message)
        await VirtualClock().sleep(self.delay())

    def holder(self, pipe, stage):
        return self.stage_map.placement[pipe, stage]

    def keep(self, where, place):
        if place in where:
            raise WentWrong("done twice")
        where.add(place)

    def use(self, where, place):
        if place not in where:
            raise WentWrong("not there yet")
        where.remove(place)


def executes(program, delay, **limits):
    """Whether a program comes to its end, with everything done."""
    try:
        Execution(program, delay, **limits).run()
    except (WentWrong, Deadlock):
        return False
    return True
