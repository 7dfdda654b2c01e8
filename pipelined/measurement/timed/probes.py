"""The stages to time: enough to separate the time of each kind of layer from the fixed time of an instruction."""

from collections.abc import Sequence

from pipelined.measurement.effort import Effort
from pipelined.measurement.measured_costs import Kind


def probes(kinds: Sequence[Kind], effort: Effort) -> list[range]:
    """The stages to time: both ends alone and with a neighbour, inner stages of several lengths, a small model whole.

    The first layer of every other kind is timed alone.

    Args:
        kinds: the kind of each layer of the model.
    """
    layers = len(kinds)
    last = layers - 1
    stages = [range(last, layers), range(0, 1)]  # the head first: it may be what limits the size of a microbatch
    if effort.neighbours and layers > 1:
        stages += [range(0, 2), range(last - 1, layers)]
    stages += [range(1, 1 + count) for count in effort.inner_layers if 0 < count <= layers - 2]
    covered = {kinds[layer] for stage in stages for layer in stage}
    for layer, kind in enumerate(kinds):
        if kind not in covered:
            covered.add(kind)
            stages.append(range(layer, layer + 1))
    if layers <= effort.whole_layers:
        stages.append(range(layers))
    return list(dict.fromkeys(stages))
