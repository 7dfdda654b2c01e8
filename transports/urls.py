"""The options in the query of a transport's URL: reading one, and refusing unknown ones.

The options of slow links, which every transport takes, are removed before; `transports.emulation.options` reads them.
"""

from urllib.parse import SplitResult, parse_qs

from transports.emulation.options import OPTIONS


def option(query: str, name: str, default: str) -> str:
    """The text of an option; of several, the last."""
    return parse_qs(query, keep_blank_values=True).get(name, [default])[-1]


def read_wait(example: str, query: str, default: float) -> float:
    """The seconds of `?wait=`: how long a rank waits for the others when the transport opens.

    Raises:
        ValueError: it is no number of seconds; the error names `example`, a URL without options.
    """
    text = option(query, "wait", str(default))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise ValueError(f"?wait= takes seconds, more than 0 (got: {text!r}); write {example}?wait={default:g}")
    return seconds


def read_switch(example: str, query: str, name: str) -> bool:
    """Whether an option that is on by default is on.

    Raises:
        ValueError: it is neither yes nor no.
    """
    text = option(query, name, "yes")
    if text not in ("yes", "no"):
        raise ValueError(f"?{name}= takes yes or no (got: {text!r}); write {example}?{name}=no")
    return text == "yes"


def refuse_unknown(scheme: str, query: str, *options: str) -> None:
    """Raise ValueError if the query has other options than these."""
    if unknown := set(parse_qs(query, keep_blank_values=True)) - set(options):
        got, known = ", ".join(sorted(unknown)), ", ".join((*options, *OPTIONS))
        raise ValueError(f"unknown option in the {scheme}:// URL (got: {got}; known: {known})")


def check_nothing_else(parts: SplitResult, *options: str) -> None:
    """Raise ValueError if a URL has more than its scheme and these options."""
    unknown = set(parse_qs(parts.query, keep_blank_values=True)) - set(options)
    if found := parts.netloc + parts.path + (f"?{parts.query}" if unknown else ""):
        known = ", ".join((*options, *OPTIONS))
        raise ValueError(f"{parts.scheme}:// takes no host or path, and no options but {known} (got: {found!r})")


def parse_port(parts: SplitResult) -> int | None:
    """The port of a URL; None if it has none. Raises ValueError if it is no port."""
    try:
        return parts.port
    except ValueError as error:
        raise ValueError(f"no port in {parts.geturl()!r} ({error}); write tcp://HOST:PORT") from error
