"""Train VGG13's shape on handwritten digits: `mpirun -n 4 python -m apps.vgg --tensor 2`, or without a launcher."""

from typing import TYPE_CHECKING

from apps.common.rows.config import parse_planned
from apps.common.rows.program import main
from apps.vgg.config import VGGFlags
from pipelined.process.exit import end_process

if TYPE_CHECKING:
    from apps.vgg.model_to_plan import VGGToPlan


def subject(flags: list[str], batch: int | None = None) -> "VGGToPlan":
    """The model that `python -m pipelined plan` plans: this program with these flags.

    Args:
        batch: images a step, instead of `--batch`.
    """
    config = parse_planned(flags, VGGFlags(), "python -m apps.vgg")
    from apps.common.rows.row_to_plan import row_to_plan
    from apps.vgg.model_to_plan import VGGToPlan

    return row_to_plan(VGGToPlan, config, batch)


if __name__ == "__main__":
    end_process(main("apps.vgg", VGGFlags()))
