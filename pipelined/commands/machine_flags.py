"""The flags that say what a machine's links and cores cost. The rule: they are the same for every command that asks."""

import argparse


def add_machine(parser: argparse.ArgumentParser, near: str) -> None:
    """Declare them.

    Args:
        near: which links `--links` is about.
    """
    costs = "alpha (seconds a message), beta (seconds a byte), gamma (seconds to add up a byte)"
    parser.add_argument("--links", default="", help=f"{near}: {costs}; 0 where not given")
    parser.add_argument("--far", default="", help="links between nodes, if they differ: the same names")
    parser.add_argument("--node", type=int, default=0, metavar="R", help="ranks a node; 0: all on one")
    parser.add_argument("--cores", type=int, default=0, metavar="K", help="cores the ranks share; 0: one each")
