"""The commands of `python -m pipelined`, one a file, named in the table of `pipelined/__main__.py`.

A command has a docstring (its help), `add_arguments(parser)` and `run(arguments)`; with `PASSES_ON` it gets the flags
that it does not know as `arguments.others`. Its module imports fast: heavy imports stand inside `run`.
"""
