"""VGG for the planner, and for the search over shardings. Needs torch, and no images."""

from apps.common.rows.row_to_plan import RowToPlan
from apps.common.run.choose import rows_of
from apps.vgg.config import VGGTask
from apps.vgg.presets import KERNEL, VGGConfig
from pipelined.sharding.search.chain import Chain, Operator
from pipelined.sharding.search.matmul import STATE_NUMBERS, Matmul


class VGGToPlan(RowToPlan):
    """See `RowToPlan`."""

    def chain(self, microbatches: int) -> Chain:
        """The model's multiplications, for the search over ways to split them."""
        assert isinstance(self.task, VGGTask)
        return chain(self.task.model, self.batch, microbatches, itemsize=self.precision.dtype.itemsize)


def chain(config: VGGConfig, batch: int, microbatches: int, itemsize: int = 4) -> Chain:
    """The convolutions and dense layers in order, as multiplications; the others are computed where their input lies.

    A convolution's rows are images times places; images are split whole.

    Args:
        batch: images a step.
        itemsize: bytes of a parameter and of an activation's number.
    Raises:
        UsageError: the microbatches do not divide the batch.
    """
    rows = rows_of(batch, microbatches)
    matmuls = dict[str, Matmul]()
    for conv in config.convolutions:
        matmuls[conv.name] = Matmul(batch * conv.side**2, conv.inputs, conv.outputs, taps=KERNEL**2)
    for dense in config.layers:
        matmuls[dense.name] = Matmul(batch, dense.inputs, dense.outputs)
    streams = [f"stream.{number}" for number in range(len(matmuls))]
    operators = [
        Operator(
            name=name,
            matmul=matmul,
            output_columns=matmul.outputs,
            input_stream=input_stream,
            output_stream=output_stream,
            sequences=rows,
            heads=matmul.outputs if matmul.taps > 1 else None,
        )
        for (name, matmul), input_stream, output_stream in zip(
            matmuls.items(), streams, [*streams[1:], None], strict=True
        )
    ]
    biases = sum(matmul.outputs for matmul in matmuls.values())
    activations = sum(2 * matmul.tokens * matmul.outputs for matmul in matmuls.values()) / microbatches
    return Chain(
        operators,
        keeps=True,
        split_bytes=activations * itemsize,
        whole_bytes=biases * STATE_NUMBERS * itemsize,
        itemsize=itemsize,
    )
