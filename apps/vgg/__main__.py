"""Train VGG13's shape on handwritten digits: `mpirun -n 4 python -m apps.vgg --tensor 2`, or without a launcher."""

from apps.rows.program import main
from apps.vgg.config import VGGFlags
from pipelined.process.exit import end_process

if __name__ == "__main__":
    end_process(main("apps.vgg", VGGFlags()))
