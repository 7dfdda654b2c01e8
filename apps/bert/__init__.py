"""`python -m apps.bert`: BERT on masked tokens, to and from Hugging Face directories."""

from functools import partial
from typing import Any


def __getattr__(name: str) -> Any:
    """`subject`, which `python -m pipelined plan` requests from a program. Imported late."""
    if name == "subject":
        from apps.bert.__main__ import BertFlags
        from apps.common.rows.program import subject

        return partial(subject, "apps.bert", BertFlags())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
