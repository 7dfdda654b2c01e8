"""Addresses of the messages between neighbouring stages. An address names the tensor, so messages need no order."""

from typing import NamedTuple

ACTIVATION = "activation"
GRADIENT = "gradient"
MESSAGE_KINDS = (ACTIVATION, GRADIENT)


class Address(NamedTuple):
    """The address of a tensor between two stages; a subclass is an activation or a gradient."""

    step: int
    pipe: int
    stage: int
    microbatch: int

    @property
    def kind(self) -> str:
        """One of `MESSAGE_KINDS`."""
        raise NotImplementedError

    @property
    def key(self) -> tuple[int | str, ...]:
        return (self.kind, *self)


class Activation(Address):
    """The input of `stage`, sent by the stage before it."""

    __slots__ = ()

    @property
    def kind(self) -> str:
        return ACTIVATION


class Gradient(Address):
    """The gradient of the output of `stage`, sent by the stage after it."""

    __slots__ = ()

    @property
    def kind(self) -> str:
        return GRADIENT


def describe(key: tuple[int | str, ...] | None) -> str:
    """An address in words, for error messages."""
    if key is None:
        return "nothing"
    if key[0] not in MESSAGE_KINDS:
        prefix = "/".join(map(str, key[:2]))
        inner = key[2:]
        return f"{prefix} of {describe(inner)}" if inner and inner[0] in MESSAGE_KINDS else "/".join(map(str, key))
    kind, step, pipe, stage, microbatch = key
    return f"{kind} of microbatch {microbatch} (step {step}, pipe {pipe}, stage {stage})"


def labels_of(key: tuple[int | str, ...]) -> dict[str, int]:
    """Step, pipe, stage and microbatch of an address, by name; empty for an address that is not between stages."""
    if key[0] in MESSAGE_KINDS:
        return dict(zip(Address._fields, map(int, key[1:]), strict=True))
    return labels_of(key[2:]) if len(key) > 2 else {}
