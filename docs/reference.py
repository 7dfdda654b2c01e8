"""Build the reference of the public interface from its docstrings: `python docs/reference.py [FOLDER]`.

The pages are HTML under docs/reference/ by default, of thousands of lines; they are built, not kept in the repository.
Every warning of the generator is an error. Nothing is fetched from a network.
"""

import sys
import warnings
from pathlib import Path

import pdoc

import pipelined
import transports

FACES = {"pipelined": pipelined, "pipelined.swarm": pipelined.swarm, "transports": transports}
"""The packages that a user imports; what is not in `__all__` is not public."""


def build(folder: Path) -> list[Path]:
    """Write the reference into a folder; returns the pages.

    Raises:
        Warning: a name or a type cannot be resolved.
    """
    for face in FACES.values():
        for name in face.__all__:
            getattr(face, name)  # a face imports its names at their first use, and pdoc looks only at those it has
    pdoc.render.configure(docformat="google", show_source=False, footer_text=f"pipelined {pipelined.__version__}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        only = ["!pipelined\\.", "pipelined.swarm", "!pipelined\\.swarm\\.", "!transports\\."]
        pdoc.pdoc("pipelined", "transports", *only, output_directory=folder)
    return sorted(folder.rglob("*.html"))


if __name__ == "__main__":
    pages = build(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "reference")
    print("\n".join(map(str, pages)))
