"""scikit-learn's handwritten digits: 1,797 images of 8 x 8 in 17 greys, of which 360 are held out."""

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import numpy as np

from pipelined.errors import UsageError

HELD_OUT = 360
GREYS = 16.0
"""The brightest."""


def require_scikit_learn() -> None:
    """Raises UsageError: scikit-learn is not installed. Nothing is imported."""
    if find_spec("sklearn") is None:
        raise UsageError("the digits are scikit-learn's, which is not installed; run pip install pipelined[images]")


@dataclass(frozen=True)
class Images:
    """Images with their classes.

    Args:
        images: (N, side, side) or (N, colours, side, side), from 0 to 1 as float32, or to 255 as uint8.
        classes: (N,), from 0 up, int64.
    """

    images: np.ndarray
    classes: np.ndarray

    def __len__(self) -> int:
        return len(self.classes)


@cache
def digits() -> tuple[Images, Images]:
    """The images to train on, and those that are held out: the same 360 on every rank and in every run."""
    from sklearn.datasets import load_digits

    bundle = load_digits()
    images, classes = (bundle.images / GREYS).astype(np.float32), bundle.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(classes))
    held_out, train = order[:HELD_OUT], order[HELD_OUT:]
    return Images(images[train], classes[train]), Images(images[held_out], classes[held_out])


def logistic_regression(train: Images, held_out: Images) -> int:
    """How many of the held-out images scikit-learn's logistic regression of the 64 greys gets right."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=1000).fit(train.images.reshape(len(train), -1), train.classes)
    return int((model.predict(held_out.images.reshape(len(held_out), -1)) == held_out.classes).sum())
