"""The URLs of transports and endpoints: the scheme, the options in the query, the port; unknown ones are refused.

The options of slow links, which every scheme takes, are removed before a transport sees its URL.
"""

from collections import Counter
from collections.abc import Iterable
from urllib.parse import SplitResult, parse_qs, parse_qsl, urlencode, urlsplit

from transports.emulation.options import OPTIONS, LinkShape, read_shape


def split_url(what: str, url: str, schemes: Iterable[str]) -> tuple[SplitResult, LinkShape | None]:
    """Split a URL into the parts that its scheme reads, and the shape of its slow links (None: not slowed).

    Args:
        what: what the URL names, for the error.
    Raises:
        ValueError: no such scheme (the error lists the known ones), or invalid options of slow links.
    """
    parts = urlsplit(url)
    if parts.scheme not in schemes:
        known = ", ".join(f"{scheme}://" for scheme in sorted(schemes))
        raise ValueError(f"unknown {what} {url!r}; known: {known}")
    shape, others = split_shape(parts.query)
    return (parts if shape is None else parts._replace(query=urlencode(others))), shape


def split_shape(query: str) -> tuple[LinkShape | None, list[tuple[str, str]]]:
    """Parse the shape in a URL's query. Returns the shape (None if no option gives one) and the other options.

    Raises:
        ValueError: a value is wrong (the error says what is allowed), or an option is given twice.
    """
    options = parse_qsl(query, keep_blank_values=True)
    for name, count in Counter(name for name, _ in options).items():
        if count > 1:
            values = ", ".join(text for other, text in options if other == name)
            raise ValueError(f"?{name}= is given {count} times in one URL (values: {values}); give it once")
    given = {name: text for name, text in options if name in OPTIONS}
    return (read_shape(given) if given else None), [(name, text) for name, text in options if name not in OPTIONS]


def option(query: str, name: str) -> str | None:
    """The text of an option, None if it is not given; of several, the last."""
    found = parse_qs(query, keep_blank_values=True).get(name)
    return None if found is None else found[-1]


def read_wait(example: str, query: str, default: float) -> float:
    """The seconds of `?wait=`: how long a rank waits for the others when the transport opens.

    Raises:
        ValueError: it is no number of seconds; the error names `example`, a URL without options.
    """
    text = option(query, "wait")
    try:
        seconds = default if text is None else float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        fact = f"more than 0 and less than 1000000 (got: {text!r})"
        raise ValueError(f"?wait= takes seconds, {fact}; write {example}?wait={default:g}")
    return seconds


def read_switch(example: str, query: str, name: str) -> bool:
    """Whether an option that is on by default is on.

    Raises:
        ValueError: it is neither yes nor no.
    """
    text = option(query, name)
    if text not in (None, "yes", "no"):
        raise ValueError(f"?{name}= takes yes or no (got: {text!r}); write {example}?{name}=no")
    return text != "no"


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
