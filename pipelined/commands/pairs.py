"""Parsing of flags such as `forward=1,backward=2/2/3`: names with one number each, or with one for every stage.

An unreadable value is refused; the message lists the readable names and an example.
"""

from collections.abc import Mapping, Sequence

from pipelined.api.laboratory.cost_names import require_names
from pipelined.errors import UsageError

PAIRS = "KEY=VALUE,..."
"""How help shows the value of such a flag."""
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def pairs(flag: str, text: str, names: Sequence[str], sizes: bool = False) -> dict[str, list[float]]:
    """The numbers by name.

    Args:
        flag: the name of the flag, for the error message.
        names: the allowed names.
        sizes: numbers are bytes, and may end in K, M or G (powers of 1024).
    Raises:
        UsageError: an unknown name, or no number.
    """
    numbers_by_name = {}
    for item in filter(None, text.split(",")):
        name, equals, numbers = item.partition("=")
        example = "512K" if sizes else "1.5"
        require_names(flag.removeprefix("--"), [name], names, example)
        if not equals:
            raise UsageError(f"{flag} {item} has no number; write it as {name}={example}")
        numbers_by_name[name] = [_number(flag, name, number, sizes) for number in numbers.split("/")]
    return numbers_by_name


def single(flag: str, numbers_by_name: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The one number of each name.

    Raises:
        UsageError: a name has several.
    """
    for name, numbers in numbers_by_name.items():
        if len(numbers) > 1:
            raise UsageError(f"{flag} takes one number for {name} (given: {len(numbers)}); leave the others out")
    return {name: numbers[0] for name, numbers in numbers_by_name.items()}


def _number(flag: str, name: str, text: str, sizes: bool) -> float:
    unit = text[-1:] if sizes and text[-1:] in UNITS else ""
    try:
        number = float(text.removesuffix(unit)) * UNITS[unit]
        return int(number) if sizes else number
    except (ValueError, OverflowError) as error:
        example = f"{name}=512K" if sizes else f"{name}=1.5"
        raise UsageError(f"{flag} {name}={text} is no number; write it as {example}") from error
