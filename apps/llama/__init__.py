"""`python -m apps.llama`: Llama, SmolLM, Qwen and the model of SWARM, to and from Hugging Face directories."""

from functools import partial
from typing import Any


def __getattr__(name: str) -> Any:
    """`subject`, which `python -m pipelined plan` requests from a program. Imported late."""
    if name == "subject":
        from apps.common.rows.program import subject
        from apps.llama.__main__ import LlamaFlags

        return partial(subject, "apps.llama", LlamaFlags())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
