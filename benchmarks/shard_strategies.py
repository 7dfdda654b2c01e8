"""What strategies of a sharded GPT-2 block take, beside predictions: `python -m benchmarks.shard_strategies`.

Figure 4 of AutoDDL. A step of one block (forward, backward, sums of the gradients) is run by 40 strategies with this
project's own collectives over slow links: on the virtual clock, where nothing but messages takes time, on one node and
on two; and with --real in real time, 8 ranks in this process. The prediction is the record of the same code, at the
prices of the links; in real time at those that timed collectives give, as the paper has it.
"""

import asyncio
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import combinations
from statistics import median
from typing import Any

import torch
import tyro

from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.common.lm.sharded.gpt2 import ShardedGPT2
from apps.common.lm.sharded.layouts import OPERATORS, Factors, factors_of
from benchmarks.harness.results import Reported, tell
from benchmarks.harness.timed_executor import TimedExecutor
from collectives import Links
from collectives.group.signature import FINGERPRINT_BYTES
from pipelined.aio.clock import RealClock, VirtualClock, run_virtual
from pipelined.measurement.timed.collective_costs import measure_collectives
from pipelined.sharding import LinkWalk, MeshGroups
from pipelined.sharding.operators.stage_record import piece, record
from pipelined.sharding.operators.tape import Tape, sum_gradients, sum_path
from pipelined.sharding.operators.verbs import Value
from pipelined.sharding.search.matmul import factorizations
from transports import open_local
from transports.wire.frames import PREAMBLE_BYTES

RANKS = 8
SEQUENCES, TOKENS = 8, 32
BLOCK = ModelConfig(layers=1, d_model=128, heads=8, vocab=64, positions=TOKENS, dropout=0.0)
ITEMSIZE = 4
FRAMING = FINGERPRINT_BYTES + 2 * PREAMBLE_BYTES
"""Bytes of a message besides its elements, at most: the first to a peer, and in a call, has all of them."""
KNOWN = ("data", "megatron")


@dataclass(frozen=True)
class Options(Reported):
    """Run strategies of a block, and compare them with their predictions."""

    strategies: int = 40
    """Strategies, the known ones among them."""
    real: bool = False
    """Run in real time, on one node."""
    repeats: int = 3
    """Steps of each strategy in real time, one in each pass over all, of which the median counts."""
    seed: int = 0
    """Of the draw of strategies."""


@dataclass(frozen=True)
class Network:
    """Slow links of ranks in one process.

    Args:
        url: with the options of the links.
        links: the same as costs.
        node: ranks of a node; 0: all on one.
    """

    name: str
    url: str
    links: Links
    node: int = 0


SLOW = Links(5e-3, 8 / 200e6, 0.0)
ONE_NODE = Network("one node", "local://?delay=5ms&rate=200mbit", SLOW)
TWO_NODES = Network(
    "two nodes",
    "local://?delay=1ms&rate=1000mbit&node=4&far-delay=5ms&far-rate=200mbit",
    Links(1e-3, 8 / 1000e6, 0.0, far=SLOW),
    node=4,
)


@dataclass(frozen=True)
class Run:
    """A strategy.

    Args:
        factors: of a block's four multiplications.
        predicted, taken: seconds of a step.
    """

    factors: str
    predicted: float
    taken: float

    @property
    def error(self) -> float:
        return self.taken / self.predicted - 1


def strategies(number: int, seed: int = 0) -> list[dict[str, Factors]]:
    """Different strategies of a block: the known ones, then some drawn from all."""
    chance = random.Random(seed)
    every = factorizations(RANKS)
    found = [factors_of(name, RANKS) for name in KNOWN]
    megatron = found[-1]
    while len(found) < number:
        drawn = dict(zip(OPERATORS, [*chance.choices(every, k=4), megatron["wte"]], strict=True))
        if drawn not in found:
            found.append(drawn)
    return found[:number]


def predicted(factors: dict[str, Factors], network: Network) -> float:
    """Seconds of a step, by a walk along its messages; rank 0's record has the moves of all ranks."""
    model = ShardedGPT2(BLOCK, factors)
    layouts, shards = _layouts(model), model.stream((SEQUENCES, TOKENS))
    pieces = {name: piece(0, each, torch.float32) for name, each in layouts.items()}
    x = Value(piece(0, shards, torch.float32, trained=False), shards)
    found = record(0, lambda tape: model.block(tape, 0, x, pieces))
    walk = LinkWalk(RANKS, network.links, network.node, message_bytes=FRAMING)
    for step in (*found.forward.moves, *found.backward.moves):
        walk.carry(step.path, step.itemsize)
    for each in layouts.values():
        walk.carry(sum_path(each), ITEMSIZE)
    return walk.seconds


async def taken(factors: dict[str, Factors], network: Network, clock: RealClock | VirtualClock) -> float:
    """Seconds of a step of all ranks."""
    ends = open_local(network.url, RANKS)
    tapes = [Tape(MeshGroups(end, 3), TimedExecutor({}, clock)) for end in ends]
    model = ShardedGPT2(BLOCK, factors)
    start = clock.now()
    await asyncio.gather(*(_step(tape, model) for tape in tapes))
    return clock.now() - start


async def _step(tape: Tape, model: ShardedGPT2) -> None:
    shards, layouts = model.stream((SEQUENCES, TOKENS)), _layouts(model)
    pieces = {name: torch.ones(each.shape(tape.rank)).requires_grad_() for name, each in layouts.items()}
    y = await tape.run(model.block(tape, 0, Value(torch.ones(shards.shape(tape.rank)), shards), pieces))
    await tape.run(tape.backward(y, torch.ones_like(y.array)))
    await sum_gradients(tape.network, [(pieces[name], each) for name, each in layouts.items()])


def _layouts(model: ShardedGPT2) -> dict[str, Any]:
    return {name: each for name, each in model.parameters().items() if ".h.0." in name}


def run(factors: dict[str, Factors], network: Network) -> Run:
    """Predict and run a strategy on the virtual clock."""
    text = " ".join(str(factors[name]) for name in OPERATORS[:4])
    return Run(text, predicted(factors, network), run_virtual(taken(factors, network, VirtualClock())))


def run_all(every: Sequence[dict[str, Factors]], network: Network, repeats: int = 0) -> list[Run]:
    """Predict and run strategies, on the virtual clock; then, if asked for, each so often in real time.

    The step on the virtual clock comes first, for it finds the paths, which every later one has.
    """
    runs = [run(factors, network) for factors in _progress(every, f"{network.name}, virtual clock")]
    if not repeats:
        return runs
    times = [
        [asyncio.run(taken(factors, network, RealClock())) for factors in _progress(every, f"pass {number}")]
        for number in range(1, repeats + 1)
    ]
    return [replace(one, taken=median(of)) for one, of in zip(runs, zip(*times, strict=True), strict=True)]


def _progress(every: Sequence[dict[str, Factors]], name: str) -> Iterator[dict[str, Factors]]:
    for number, factors in enumerate(every, 1):
        print(f"{name}: strategy {number} of {len(every)}", end="\r", file=sys.stderr)
        yield factors


def found_links(network: Network) -> Links:
    """Alpha and beta by timed collectives of all ranks, in real time."""

    async def measured() -> Links:
        ends, everyone = open_local(network.url, RANKS), tuple(range(RANKS))
        found, *_ = await asyncio.gather(*(measure_collectives(end, RealClock(), everyone) for end in ends))
        assert found is not None  # rank 0 has it
        return found.pooled_links

    return asyncio.run(measured())


def tau(runs: Sequence[Run]) -> float:
    """Kendall's tau of predictions and times; a pair that is equal in either counts 0."""
    signs = [_sign(a.predicted - b.predicted) * _sign(a.taken - b.taken) for a, b in combinations(runs, 2)]
    return sum(signs) / len(signs)


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)


def regret(runs: Sequence[Run]) -> float:
    """How much longer the strategy with the shortest prediction takes than the fastest, as a share."""
    return min(runs, key=lambda each: each.predicted).taken / min(each.taken for each in runs) - 1


def summary(runs: Sequence[Run]) -> dict[str, float]:
    """Errors as shares of the predictions, tau and regret."""
    errors = [each.error for each in runs]
    found = {"median_error": median(map(abs, errors)), "least_error": min(errors), "most_error": max(errors)}
    return {**found, "tau": tau(runs), "regret": regret(runs)}


def table(found: dict[str, Any]) -> str:
    """A line a strategy, and the summary of each network."""
    lines = []
    for name, each in found.items():
        lines += [name, f"{'factors':<28}{'predicted ms':>14}{'taken ms':>12}{'error':>9}"]
        for one in each["runs"]:
            times = f"{1e3 * one['predicted']:>14.2f}{1e3 * one['taken']:>12.2f}"
            lines.append(f"{one['factors']:<28}{times}{one['taken'] / one['predicted'] - 1:>9.2%}")
        over = each["summary"]
        errors = f"median error {over['median_error']:.2%} ({over['least_error']:+.2%} to {over['most_error']:+.2%})"
        lines += [f"{errors}, tau {over['tau']:.3f}, regret {over['regret']:.2%}"]
        if links := each.get("links"):
            lines += [f"found alpha {1e3 * links['alpha']:.3f} ms, beta {1e9 * links['beta']:.2f} ns a byte"]
        lines += [""]
    return "\n".join(lines).rstrip()


def main(options: Options) -> None:
    """Run all strategies on the networks asked for."""
    torch.set_num_threads(1)
    every, found = strategies(options.strategies, options.seed), dict[str, Any]()
    if options.real:
        links = found_links(ONE_NODE)
        runs = run_all(every, replace(ONE_NODE, links=links), options.repeats)
        found[ONE_NODE.name] = {**_plain(runs), "links": asdict(links), "stated": asdict(SLOW)}
    else:
        found = {network.name: _plain(run_all(every, network)) for network in (ONE_NODE, TWO_NODES)}
    tell(options, found, partial(table, found))


def _plain(runs: Sequence[Run]) -> dict[str, Any]:
    return {"runs": [asdict(each) for each in runs], "summary": summary(runs)}


if __name__ == "__main__":
    main(tyro.cli(Options))
