"""The stages to time: enough to separate the time of each kind of layer from the fixed time of an instruction."""

from collections.abc import Sequence

from pipelined.measurement.effort import Effort
from pipelined.measurement.measured_costs import Kind


def probes(kinds: Sequence[Kind], effort: Effort) -> list[range]:
    """The stages to time: both ends alone and with a neighbour, inner ones of several lengths, and a small model whole.

    Of every other kind of layer the first one is timed alone.

    Args:
        kinds: the kind of each layer of the model.
    """
    layers = len(kinds)
    last = len(kinds) - 1
    ends = [range(last, layers), range(0, 1)]  # the head first: it may be what limits the size of a microbatch
    neighbours = [range(0, 2), range(last - 1, layers)] if effort.neighbours else []
    inner = [range(1, 1 + count) for count in effort.inner if count <= layers - 2]
    whole = [range(layers)] if layers <= effort.whole else []
    every = [found for found in (*ends, *neighbours, *inner) if found and 0 <= found.start < found.stop <= layers]
    covered = {kinds[layer] for found in every for layer in found}
    others = {kind: range(layer, layer + 1) for layer, kind in reversed([*enumerate(kinds)]) if kind not in covered}
    return list(dict.fromkeys([*every, *reversed(others.values()), *whole]))
