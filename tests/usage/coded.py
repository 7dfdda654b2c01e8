"""Runs the GPT-2 program on one rank without torch, and leaves its exit code in a file of its own.

python -m tests.usage.coded FOLDER FLAGS…
"""

import os
import sys
from pathlib import Path

from apps.gpt2 import __main__ as gpt2
from pipelined.process.launch import detect
from tests.usage.refused import NoTorch


def main(folder, *flags):
    """The program's own way to end, whichever it takes."""
    rank = detect(os.environ).rank
    try:
        code = gpt2.main(list(flags))
    except SystemExit as end:
        code = end.code
    Path(folder, f"rank-{rank}").write_text(str(code))
    return code


if __name__ == "__main__":
    sys.meta_path.insert(0, NoTorch())
    sys.exit(main(*sys.argv[1:]))
