"""A model with whole numbers as gradients, so that sums are exact in any order and one wrong bit is a wrong answer.

A stage adds its parameters to what flows through it, modulo a small number; its gradients depend on its input, on the
gradient that comes back, on the parameters and on the microbatch, so that one counted twice, left out, or computed with
parameters of another step changes the result. `Reference` is the plain loop that a whole swarm must equal to the bit.
"""

import numpy as np

from pipelined.swarm.stages.swarm_stage import BackwardResult, Microbatch, NotFinite
from transports import Block, pack, unpack

WIDTH = 4
BASE = 97


class ExactStage:
    """Parameters are whole numbers in [0, BASE); the optimizer has a momentum of whole numbers."""

    model = "exact"
    maxima = 0

    def __init__(self, index, stages):
        self.index, self.last = index, index == stages - 1
        self.weights = np.arange(WIDTH, dtype=np.float64) + 7 * index
        self.momentum = np.zeros(WIDTH)
        self.sums = np.zeros(WIDTH)

    def expects(self):
        return [("float64", (WIDTH,))]

    expects_given = expects

    def forward(self, microbatch, inputs):
        return [self._output(inputs[0].numpy())]

    def backward(self, microbatch, inputs, given, count):
        x, g = inputs[0].numpy(), given[0].numpy()
        out, g = self._output(x), finite(g)
        gradient = (out * (g + 1) + microbatch.index) % BASE
        if count:
            self.sums += gradient
        return BackwardResult([(g + out) % BASE], float(gradient[0]) if self.last else None)

    def evaluate(self, inputs, labels=()):
        out = self._output(inputs[0].numpy())
        return [(out[: len(each)] + each) % BASE for each in (label.numpy() for label in labels)] or [out]

    def _output(self, x):
        return (finite(x) + self.weights) % BASE

    def clear(self):
        self.sums[:] = 0

    def fits(self, total):
        return True

    def square(self, total):
        return float(np.square(total).sum())

    def apply(self, step, total, scale):
        self.momentum[:] = (self.momentum + total) % BASE
        self.weights[:] = (self.weights + self.momentum) % BASE

    def parts(self, flat):
        return {str(self.index): flat}

    def state(self):
        return {f"{self.index}/weights": self.weights, f"{self.index}/momentum": self.momentum}

    def load(self, state):
        for name, mine in self.state().items():
            mine[:] = state[name].numpy()


def finite(array):
    """The nearest whole numbers: what a codec lost is lost, but sums stay exact."""
    if not np.isfinite(array).all():
        raise NotFinite("no finite numbers")
    return np.rint(array)


def data(microbatch):
    x = (np.arange(WIDTH, dtype=np.float64) * (microbatch.index + 1) + microbatch.step) % BASE
    return [x], [x[::-1].copy()]


class Reference:
    """One process that trains alone: the weights of each stage at each step, and each step's loss.

    What goes from one stage to another goes through the codec, as between peers. Where updates are delayed each is made
    with the gradients of the step before, the first with none.
    """

    def __init__(self, stages, batch, codec="", delayed=False):
        self._model, self._batch, self._codec = [ExactStage(index, stages) for index in range(stages)], batch, codec
        self._weights, self.losses, self._delayed = [self._copied()], [], delayed
        self._summed = []

    def weights(self, step, index):
        while len(self._weights) <= step:
            self._take_step(len(self.losses))
        return self._weights[step][index]

    def score(self, step, held_out):
        """Mean loss over so many microbatches of validation data."""
        final_state = step + self._delayed  # with all that was summed
        self.weights(final_state, 0)
        losses = []
        for index in range(self._batch, self._batch + held_out):
            (x,), (labels,) = data(Microbatch(step, index))
            for weights in self._weights[final_state]:
                x = (x + weights) % BASE
            losses += ((x[: len(labels)] + labels) % BASE).tolist()
        return sum(losses) / len(losses)

    def _take_step(self, step):
        losses = [self._through(Microbatch(step, index)) for index in range(self._batch)]
        self.losses.append(sum(losses) / self._batch)
        self._summed.append([stage.sums.copy() for stage in self._model])
        due = step - self._delayed
        for at, stage in enumerate(self._model):
            stage.clear()
            if due >= 0:
                stage.apply(due, self._summed[due][at], 1.0)
        self._weights.append(self._copied())

    def _through(self, which):
        (x,), (given,) = data(which)
        kept = [Block.of(x)]
        for stage in self._model[:-1]:
            kept.append(self._carried(stage.forward(which, [kept[-1]])[0]))
        losses, given = [], Block.of(given)
        for stage in reversed(self._model):
            passed = stage.backward(which, [kept.pop()], [given], True)
            given = self._carried(passed.gradients[0])
            losses.append(passed.loss or 0.0)
        return sum(losses)

    def _carried(self, array):
        if not self._codec:
            return Block.of(array)
        packed = pack(self._codec, [array], "what goes to another stage")
        return unpack(packed.blocks, packed.note, array.nbytes)[0]

    def _copied(self):
        return [stage.weights.copy() for stage in self._model]
