"""Runs the GPT-2 program on many command lines in one process from which torch cannot be imported.

python -m tests.usage.refused < COMMAND-LINES.json > OUTCOMES.json: for each its exit code and what it said on stderr.
"""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout

from apps.gpt2 import __main__ as gpt2


class NoTorch:
    """Stands first among the finders of modules."""

    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise RuntimeError("torch was imported")


def outcome(arguments):
    """What one command line comes to."""
    said = io.StringIO()
    with redirect_stderr(said), redirect_stdout(io.StringIO()):
        try:
            code = gpt2.main(arguments)
        except SystemExit as end:
            code = end.code
    return {"code": code, "said": said.getvalue()}


if __name__ == "__main__":
    sys.meta_path.insert(0, NoTorch())
    json.dump([outcome(arguments) for arguments in json.load(sys.stdin)], sys.stdout)
