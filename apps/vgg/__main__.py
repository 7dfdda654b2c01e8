"""Train VGG13's shape on handwritten digits: `mpirun -n 4 python -m apps.vgg --tensor 2`, or without a launcher."""

from typing import TYPE_CHECKING

from apps.common.rows.config import parse_planned
from apps.common.rows.program import main
from apps.vgg.config import VGGFlags
from pipelined.process.exit import end_process

if TYPE_CHECKING:
    from apps.vgg.planned_model import PlannedVGG


def subject(flags: list[str], batch: int | None = None) -> "PlannedVGG":
    """The model that `python -m pipelined plan` plans: this program with these flags.

    Args:
        batch: images a step, instead of `--batch`.
    """
    config = parse_planned(flags, VGGFlags(), "python -m apps.vgg")
    from apps.common.rows.planned import planned_row
    from apps.vgg.planned_model import PlannedVGG

    return planned_row(PlannedVGG, config, batch)


if __name__ == "__main__":
    end_process(main("apps.vgg", VGGFlags()))
