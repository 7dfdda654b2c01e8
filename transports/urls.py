"""The URLs of transports and endpoints, parsed once: the scheme, the host and port, the options in the query.

A transport takes the parts that it knows, one by one, and `ParsedUrl.check_all_taken` refuses the rest. The options of
slow links, which every scheme takes, are taken here.
"""

from collections import Counter
from collections.abc import Iterable
from urllib.parse import parse_qsl, urlsplit

from transports.emulation.options import OPTIONS, OPTIONS_OF, LinkProfile, read_profile


class ParsedUrl:
    """The parts of a URL.

    Args:
        what: what the URL names: transport or endpoint.
        schemes: the known schemes.
    Attributes:
        text: the whole URL.
        host: the host's name or address; None if it has none.
        links: the profile of its slow links; None: not slowed.
    Raises:
        ValueError: a malformed host, no such scheme (the error lists the known ones), an option given twice, or invalid
            options of slow links.
    """

    def __init__(self, what: str, url: str, schemes: Iterable[str]):
        self.text = url
        try:
            self._parts = urlsplit(url)
        except ValueError as error:
            raise ValueError(f"no {what} in {url!r} ({error}); write tcp://HOST:PORT") from error
        self.scheme, self.host = self._parts.scheme, self._parts.hostname
        if self.scheme not in schemes:
            schemes_text = ", ".join(f"{scheme}://" for scheme in sorted(schemes))
            raise ValueError(f"unknown {what} {url!r}; known: {schemes_text}")
        self._link_options = OPTIONS_OF[what]
        self.links, self._options = split_profile(self._parts.query)
        self._known_options: list[str] = []

    @property
    def port(self) -> int | None:
        """The port; None if it has none. Raises ValueError if it is no port."""
        try:
            return self._parts.port
        except ValueError as error:
            raise ValueError(f"no port in {self.text!r} ({error}); write tcp://HOST:PORT") from error

    def option(self, name: str) -> str | None:
        """Take the text of an option; None if it is not given."""
        self._known_options.append(name)
        return self._options.pop(name, None)

    def seconds(self, name: str, default: float) -> float:
        """Take an option that is a number of seconds.

        Raises:
            ValueError: it is not a number, or not more than 0 and less than 1e6.
        """
        text = self.option(name)
        try:
            seconds = default if text is None else float(text)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < 1e6:
            fact = f"more than 0 and less than 1000000 (got: {text!r})"
            raise ValueError(f"?{name}= takes seconds, {fact}; write {self._example}?{name}={default:g}")
        return seconds

    def switch(self, name: str) -> bool:
        """Take an option that is on by default.

        Raises:
            ValueError: it is neither yes nor no.
        """
        text = self.option(name)
        if text not in (None, "yes", "no"):
            raise ValueError(f"?{name}= takes yes or no (got: {text!r}); write {self._example}?{name}=no")
        return text != "no"

    def check_all_taken(self, *, host: bool = False) -> None:
        """Check that every part was taken.

        Args:
            host: whether the scheme takes a host and a port.
        Raises:
            ValueError: a part that the scheme does not take; the error names it.
        """
        parts = self._parts
        options_text = ", ".join((*self._known_options, *self._link_options))
        if host:
            if "@" in parts.netloc or parts.path not in ("", "/") or parts.fragment:
                fact = f"{self.scheme}:// takes a host, a port and options only (got: {self.text!r})"
                raise ValueError(f"{fact}; write {self.scheme}://HOST:PORT")
            if self._options:
                unknown = ", ".join(sorted(self._options))
                raise ValueError(f"unknown option in the {self.scheme}:// URL (got: {unknown}; known: {options_text})")
            return
        query = "&".join(f"{name}={text}" for name, text in self._options.items())
        fragment = f"#{parts.fragment}" if parts.fragment else ""
        if rest := parts.netloc + parts.path + (f"?{query}" if query else "") + fragment:
            raise ValueError(
                f"{self.scheme}:// takes no host or path, and no options but {options_text} (got: {rest!r})"
            )

    @property
    def _example(self) -> str:
        return f"{self.scheme}://{self._parts.netloc}"


def split_profile(query: str) -> tuple[LinkProfile | None, dict[str, str]]:
    """Parse the profile in a URL's query. Returns the profile (None if no option gives one) and the other options.

    Raises:
        ValueError: a value is wrong (the error says what is allowed), or an option is given twice.
    """
    options = parse_qsl(query, keep_blank_values=True)
    for name, count in Counter(name for name, _ in options).items():
        if count > 1:
            values = ", ".join(text for option, text in options if option == name)
            raise ValueError(f"?{name}= is given {count} times in one URL (values: {values}); give it once")
    link_options = {name: text for name, text in options if name in OPTIONS}
    return (read_profile(link_options) if link_options else None), {
        name: text for name, text in options if name not in OPTIONS
    }
