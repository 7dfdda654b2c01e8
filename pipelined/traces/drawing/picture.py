"""A picture of a timeline: shown by a notebook, saved as an SVG or PNG file. Only drawing it imports matplotlib."""

import os
from dataclasses import dataclass
from pathlib import Path

from pipelined.errors import UsageError, writing
from pipelined.traces.drawing.scene import Scene

FORMATS = ("svg", "png")


@dataclass(frozen=True, repr=False)
class Picture(Scene):
    """The timeline of a step, one row a worker, time to the right. A notebook shows it as SVG."""

    def save(self, path: "str | os.PathLike[str]", format: str | None = None) -> None:
        """Draw it to a file. An SVG of thousands of boxes has several megabytes.

        Args:
            format: "svg" or "png"; None: what the file's name ends in.
        Raises:
            UsageError: another format, or the file cannot be written. ModuleNotFoundError: there is no matplotlib.
        """
        path = Path(path)
        format = format or path.suffix.removeprefix(".").lower()
        if format not in FORMATS:
            raise UsageError(f"a picture cannot be saved as {path.name}; name a file that ends in .svg or .png")
        content = self._draw(format)
        with writing(path):
            path.write_bytes(content)

    def _draw(self, format: str) -> bytes:
        from pipelined.traces.drawing.figure import draw, figure_bytes

        return figure_bytes(draw(self), format)

    def _repr_svg_(self) -> str | None:
        """The SVG for a notebook; None where matplotlib is not installed, so that the text is shown."""
        try:
            return self._draw("svg").decode()
        except ModuleNotFoundError:
            return None

    def __repr__(self) -> str:
        return f"<Picture of {len(self.boxes)} forwards and backwards on {len(self.rows)} rows: {self.title}>"
