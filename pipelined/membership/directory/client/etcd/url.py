"""The URL of an etcd cluster: `etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…][/NAMESPACE][?ca=FILE…]`."""

import re
import ssl
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from pipelined.errors import UsageError
from pipelined.membership.addresses import without_password

PORT = 2379
NAMESPACE = "pipelined"
FILES = ("ca", "cert", "key")
EXAMPLE = "write etcd://HOST[:PORT][,HOST[:PORT]…][/NAMESPACE], with ?ca=FILE and &cert=FILE&key=FILE for TLS"


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """A cluster, and the namespace of one directory in it.

    Args:
        members: HOST:PORT of each member that may receive requests.
        namespace: all keys begin with it and a slash.
        user, password: for a cluster that requires them.
        ca: a file with the authority that signed the members' certificates; the client uses TLS if this is given.
        cert, key: files with the client's certificate and key, for a cluster that requires them.
    """

    members: tuple[str, ...]
    namespace: str = NAMESPACE
    user: str = ""
    password: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""

    @classmethod
    def parse(cls, url: str) -> "EtcdAddress":
        """Parse a URL. Raises UsageError: malformed, or with an unknown option."""
        scheme, _, location = url.partition("://")
        place = re.split("[/?#]", location, maxsplit=1)[0]  # not with `urlsplit`, which refuses brackets after a comma
        parts = urlsplit(location[len(place) :])
        login, _, hosts = place.rpartition("@")
        user, _, password = login.partition(":")
        files = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := set(files) - set(FILES):
            raise UsageError(f"unknown option {min(unknown)!r} in {without_password(url)}; known: {', '.join(FILES)}")
        if scheme != "etcd" or not hosts or parts.fragment or ("ca" not in files and files):
            raise UsageError(f"no etcd cluster in {without_password(url)!r}; {EXAMPLE}")
        members = tuple(_with_port(host, url) for host in hosts.split(","))
        namespace = unquote(parts.path.strip("/")) or NAMESPACE
        return cls(members, namespace, unquote(user), unquote(password), **files)

    @property
    def scheme(self) -> str:
        """The scheme of the members' URLs."""
        return "https" if self.ca else "http"

    def tls(self) -> ssl.SSLContext | bool:
        """The TLS context; False: no TLS. Raises UsageError: a file is missing or malformed."""
        if not self.ca:
            return False
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(file for file in (self.ca, self.cert, self.key) if file)
            raise UsageError(f"cannot speak TLS with these files ({error}; {files}); give PEM files") from error
        return context


def _with_port(host: str, url: str) -> str:
    """HOST:PORT, with etcd's default port if the URL names no port."""
    try:
        parts = urlsplit(f"//{host}")
        port = PORT if parts.port is None else parts.port
    except ValueError as error:
        raise UsageError(f"no such port in {without_password(url)!r}; {EXAMPLE}") from error
    if not parts.hostname:
        raise UsageError(f"no host before a comma in {without_password(url)!r}; {EXAMPLE}")
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{name}:{port}"
