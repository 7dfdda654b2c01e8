"""What help shows for the value of a flag: its unit or its form, such as SECONDS, not a type of Python. No torch."""

from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

METAVAR_OF = {
    name: metavar
    for metavar, names in {
        "SECONDS": "grace lease rebalance",
        "TIME": "delay",
        "BYTES": "bytes ram",
        "RATE": "bandwidth",
        "URL": "coordinator directory listen transport",
        "KEY=VALUE,...": "links",
        "NAME": "preset wandb",
        "CODEC": "compress compress_sums",
        "ALGORITHM": "all_reduce",
        "TEXT": "prompt",
        "STEPS": "steps warmup eval_every digest",
        "TOKENS": "seq sample tokens context positions",
        "STAGE": "stage",
        "SEED": "seed",
        "PORT": "web",
        "PIXELS": "side",
        "FRACTION": "balance dropout reliability top_p",
        "DIR": "checkpoint export init orders resume tensorboard to",
        "FILE": "config journal metrics plan png pool replay trace",
    }.items()
    for name in names.split()
}
"""The form of a value, by the flags' names as fields. A unit is the same in every program."""
METAVAR_OF_TYPE = {int: "COUNT", float: "NUMBER", Path: "PATH"}
"""The form of any other value, by its type; text is shown by the flag's name."""


def metavar_of(name: str, kind: Any) -> str | None:
    """The form of a flag's value. None: the parser itself shows it, as of a switch or a choice."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    is_union = isinstance(kind, UnionType) or get_origin(kind) is Union
    first_type, *other_types = get_args(kind) if is_union else [kind]
    if first_type is bool or get_origin(first_type) is Literal:
        return None
    is_tuple = get_origin(first_type) is tuple
    item_type = get_args(first_type)[0] if is_tuple else first_type
    form = METAVAR_OF.get(name) or METAVAR_OF_TYPE.get(item_type) or name.upper()
    if is_tuple:
        return f"[{form} [{form} ...]]"
    words = [str(word) for other_type in other_types for word in get_args(other_type)]
    return "|".join([form, *words])
