"""The commands of `python -m pipelined`, one a file, named in the table of `pipelined/__main__.py`.

A command has a docstring (its help), `add_arguments(parser)` and `run(arguments)`; one with `PASSES_ON` gets the flags
that it does not know as `arguments.others`. Its module must import fast: what is
heavy is imported inside `run`.
"""

from pipelined.commands.errors import BadInput, writing

__all__ = ["BadInput", "writing"]
