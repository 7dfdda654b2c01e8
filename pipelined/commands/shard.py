"""Find how to split every operator of a model over a group of ranks, so that a step moves least, beside the baselines.

Flags that are not listed are the program's: `python -m pipelined shard --ranks 64 --preset gpt2-xl --batch 64`.
The time of a step is that of its moves; all strategies compute as much.
"""

import argparse
import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from pipelined.api.laboratory.cost_names import LINK
from pipelined.commands.pairs import PAIRS, pairs, single
from pipelined.commands.plan import memory_limit, model_of_program
from pipelined.errors import UsageError, refuse_below, writing
from pipelined.schedules import require_count
from pipelined.sharding.search.methods.registry import SEARCHES

if TYPE_CHECKING:
    from pipelined.sharding.search.chain import Chain
    from pipelined.sharding.search.network import Network
    from pipelined.sharding.search.report import ShardRequest

PASSES_ON = True
"""Flags that this command does not know go to the program."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.allow_abbrev = False
    split = parser.add_argument_group("what is split")
    split.add_argument("--ranks", type=int, required=True, metavar="T", help="number of ranks to split over")
    split.add_argument(
        "--program",
        default="pipelined.apps.gpt2",
        metavar="MODULE",
        help="the program of the model: a module with `subject`",
    )
    split.add_argument(
        "--chain",
        metavar="TOKENS:WIDTHS",
        help="multiplications instead of a model: tokens a step, then the widths, as 1048576:8192-24576/8192-8192, "
        "where 24576/8192 means that attention reduces 24576 columns to 8192. Memory then counts state alone",
    )
    split.add_argument("--closed", action="store_true", help="the last multiplication of --chain feeds the first")
    costs = "alpha (seconds per message), beta (seconds per byte), gamma (seconds to add a byte)"
    machine = parser.add_argument_group("machine")
    machine.add_argument(
        "--links",
        default="",
        metavar=PAIRS,
        help=f"links between ranks (without this flag as in one machine): {costs}; 0 if missing",
    )
    machine.add_argument("--far", default="", metavar=PAIRS, help="links between nodes, if they differ; the same names")
    machine.add_argument(
        "--node", type=int, default=0, metavar="R", help="ranks per node, each level with factors; 0: all on one node"
    )
    machine.add_argument(
        "--memory-limit", metavar="BYTES", help="bytes that a rank may hold, with K, M or G. Default: no limit"
    )
    split.add_argument("--microbatches", type=int, default=1, metavar="N", help="microbatches per step")
    search = parser.add_argument_group("search")
    search.add_argument("--replicas", type=int, metavar="R", help="the most replicas of a weight (p0). Default: any")
    search.add_argument(
        "--space",
        default="paper",
        choices=["paper", "full"],
        help="paper: rows, columns and contraction of each operator; full: also ZeRO-1, -2 and -3 by operator, inputs "
        "that are gathered again, and streams cut by tokens or columns",
    )
    search.add_argument("--search", default="dynamic", choices=list(SEARCHES), help="dynamic and exhaustive are exact")
    search.add_argument(
        "--layout",
        default="auto",
        help="price this instead of searching: paper (search that space), data, megatron, megatron_1d, summa, zero1, "
        "zero2, zero3, factors by layer (c_attn=1.2.2,c_fc=1.4.1; the others are searched), or a file of --out",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print JSON")
    output.add_argument("--out", type=Path, metavar="FILE", help="write the strategy to this file, for --layout")


def run(arguments: argparse.Namespace) -> None:
    """Do what the flags say.

    Raises:
        UsageError: the flags request something impossible, or no strategy fits, or the program refuses its flags.
    """
    from pipelined.sharding.search.report import find_sharding

    sharding = find_sharding(_request(arguments))
    if arguments.out:
        with writing(arguments.out):
            arguments.out.write_text(json.dumps(sharding.to_file(), indent=2) + "\n")
    print(json.dumps(sharding.to_dict()) if arguments.json else sharding)


def _request(arguments: argparse.Namespace) -> "ShardRequest":
    from pipelined.sharding.search.pricing import PricedChain
    from pipelined.sharding.search.report import ShardRequest

    for name, least in (("ranks", 1), ("node", 0), ("microbatches", 1), ("replicas", 1)):
        if (value := getattr(arguments, name)) is not None:
            refuse_below(least, f"--{name}", value)
            require_count(f"--{name}", value)
    chain = _chain(arguments)
    free_streams = arguments.space == "full" and arguments.layout != "paper"
    levels = _levels(arguments.ranks, arguments.node)
    if arguments.far and len(levels) == 1:
        fact = f"--far has no use on one node (ranks: {arguments.ranks}, node: {arguments.node})"
        raise UsageError(f"{fact}; give a --node below the ranks, or leave --far out")
    priced_chain = PricedChain(chain, levels, _network(arguments, chain.itemsize), arguments.microbatches, free_streams)
    limit = memory_limit(arguments.memory_limit)
    return ShardRequest(
        priced_chain, arguments.layout, arguments.replicas, inf if limit is None else limit, arguments.search
    )


def _chain(arguments: argparse.Namespace) -> "Chain":
    """The chain of multiplications to split.

    Raises:
        UsageError: the chain is invalid, the program has none, or flags exclude one another.
    """
    from pipelined.sharding.search.chain import read_chain

    if arguments.chain is not None:
        if arguments.others:
            raise UsageError(f"{arguments.others[0]} is a program's flag; leave it out, or leave --chain out")
        return read_chain(arguments.chain, arguments.closed)
    if arguments.closed:
        raise UsageError("--closed goes with --chain; add --chain, or leave --closed out")
    model = model_of_program(arguments.program, arguments.others, command_flags=arguments.own)
    if not hasattr(model, "chain"):
        raise UsageError(f"the model of --program {arguments.program} has no known operators; give a --chain")
    return model.chain(arguments.microbatches)


def _levels(ranks: int, node: int) -> tuple[int, ...]:
    """Ranks; with several nodes, nodes and ranks of a node."""
    if not node or ranks <= node:
        return (ranks,)
    if ranks % node:
        raise UsageError(f"--node does not divide the ranks (ranks: {ranks}, node: {node}); take whole nodes")
    return ranks // node, node


def _network(arguments: argparse.Namespace, itemsize: int) -> "Network":
    from collectives import Links
    from pipelined.api.laboratory.described import link_of
    from pipelined.sharding.search.network import Network

    links, far = (single(f"--{name}", pairs(f"--{name}", getattr(arguments, name), LINK)) for name in ("links", "far"))
    near = link_of("links", links) if links else Links()
    return Network(replace(near, far=link_of("far", far) if far else None), itemsize)
