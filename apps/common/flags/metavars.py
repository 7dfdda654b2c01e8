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
        "FLOPS": "flops",
        "URL": "coordinator directory listen transport",
        "KEY=VALUE,...": "links",
        "NAME": "name preset wandb",
        "CODEC": "compress compress_sums",
        "ALGORITHM": "all_reduce",
        "SCHEDULE": "schedule",
        "LAYOUT": "layout",
        "TOKENIZER": "tokenizer",
        "DEVICE": "device",
        "TEXT": "prompt",
        "STEPS": "steps warmup eval_every digest",
        "TOKENS": "seq sample tokens context positions",
        "STAGE": "stage",
        "SEED": "seed",
        "PORT": "web",
        "PIXELS": "side",
        "FRACTION": "balance dropout reliability top_p",
        "COUNT": "ahead",
        "DIR": "checkpoint export init orders resume tensorboard to",
        "FILE": "config journal metrics plan png pool replay trace",
    }.items()
    for name in names.split()
}
"""The form of a value, by the flags' names as fields. A unit is the same in every program."""
METAVAR_OF_TYPE = {int: "COUNT", float: "NUMBER", str: "NAME", Path: "PATH"}
"""The form of any other value, by its type."""


def metavar_of(name: str, kind: Any) -> str | None:
    """The form of a flag's value. None: the parser itself shows it, as of a switch or a choice."""
    first, *others = _alternatives(kind)
    if first is bool or get_origin(first) is Literal:
        return None
    is_tuple = get_origin(first) is tuple
    form = METAVAR_OF.get(name) or METAVAR_OF_TYPE[get_args(first)[0] if is_tuple else first]
    if is_tuple:
        return f"[{form} [{form} ...]]"
    words = [str(word) for other in others for word in get_args(other)]
    return "|".join([form, *words])


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """The types that an annotation names, the first of them that of most values."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return get_args(kind) if isinstance(kind, UnionType) or get_origin(kind) is Union else (kind,)
