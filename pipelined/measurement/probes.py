"""The stages to time: enough to separate the time of each kind of layer from the fixed time of an instruction."""

from pipelined.measurement.effort import Effort


def probes(layers: int, effort: Effort) -> list[range]:
    """The stages to time: both ends alone and with a neighbour, inner ones of several lengths, and a small model whole.

    Args:
        layers: the number of layers of the model.
    """
    last = layers - 1
    ends = [range(0, 1), range(last, layers)]
    neighbours = [range(0, 2), range(last - 1, layers)] if effort.neighbours else []
    inner = [range(1, 1 + count) for count in effort.inner if count <= layers - 2]
    whole = [range(layers)] if layers <= effort.whole else []
    every = (*ends, *neighbours, *inner, *whole)
    return list(dict.fromkeys(found for found in every if found and 0 <= found.start < found.stop <= layers))
