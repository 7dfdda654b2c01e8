"""Requests to an etcd cluster over its JSON gateway: HTTP, authentication, and the errors of etcd.

Any member can serve a request; after a failure the client goes to the next member.

Source: etcd v3.4, api reference and gRPC gateway.
"""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx2

from pipelined.aio.clock import Clock
from pipelined.errors import UsageError
from pipelined.membership.directory.api import CutOff, Full
from pipelined.membership.directory.client.etcd.url import EtcdAddress
from pipelined.membership.directory.client.retry import NoReply, Retry

NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION = 5, 6, 7, 8, 9
OUT_OF_RANGE, UNAUTHENTICATED = 11, 16
"""gRPC status codes. etcd sends OUT_OF_RANGE where the revision is compacted."""
RETRYABLE = (1, 2, 4, 10, 13, 14)
"""Status codes after which the client retries: cancelled, unknown, deadline exceeded, aborted, internal, unavailable.

A member sends them when it has no leader, starts or stops.
"""
AUTHENTICATE = "auth/authenticate"
NO_SPACE = "database space exceeded"
LOGIN_REFUSED = ("authentication failed", "user name is empty")
"""Parts of the messages with which etcd refuses a missing or wrong password, in addition to the codes."""


class EtcdError(Exception):
    """A member refused a request.

    Args:
        code: gRPC status code.
    """

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


class Stream:
    """A stream of replies; each is a map."""

    def __init__(self, response: httpx2.Response):
        self._response = response
        self._lines = response.aiter_lines()

    def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        return self

    async def __anext__(self) -> dict[str, Any]:
        """Raises NoReply: the stream broke."""
        try:
            return _result(json.loads(await anext(self._lines)))
        except (StopAsyncIteration, httpx2.HTTPError, httpx2.StreamError, json.JSONDecodeError) as error:
            raise NoReply(f"the stream broke ({type(error).__name__} {error})") from error

    async def close(self) -> None:
        await self._response.aclose()


class Gateway:
    """Sends the requests of one client to the cluster.

    Args:
        patience: seconds without a reply from any member after which calls raise `CutOff`.
    """

    def __init__(self, address: EtcdAddress, clock: Clock, patience: float):
        self.retry = Retry(f"etcd://{','.join(address.members)}", clock, patience)
        self._address, self._member_index = address, 0
        self._http = httpx2.AsyncClient(verify=address.tls(), timeout=None, trust_env=False)
        self._token = ""

    async def call(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request until a member replies; the request may be carried out twice.

        Raises:
            EtcdError: a member refused the request.
            CutOff: no member replied in time.
            UsageError: the cluster refused the user and password.
            Full: the cluster has no room.
        """
        return await self.retry.run(lambda: self._call_once(path, body))

    async def stream(self, path: str, body: Mapping[str, Any]) -> tuple[Stream, dict[str, Any]]:
        """Send a request until a member begins a stream; returns the stream and its first reply. Raises as `call`."""
        return await self.retry.run(lambda: self._stream_once(path, body))

    def use_next_member(self) -> None:
        """Send further requests to the next member."""
        self._member_index += 1

    async def close(self) -> None:
        await self._http.aclose()

    async def _call_once(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        with self._member_attempt():
            response = await self._send(path, body)
            try:
                await response.aread()
            finally:
                await response.aclose()
            return _result(json.loads(response.content))

    async def _stream_once(self, path: str, body: Mapping[str, Any]) -> tuple[Stream, dict[str, Any]]:
        with self._member_attempt():
            stream = Stream(await self._send(path, body))
            try:
                first_reply = await anext(stream)
                if first_reply.get("canceled") and "compact_revision" not in first_reply:
                    raise NoReply(f"{self._member}: {first_reply.get('cancel_reason', 'the watch was cancelled')}")
                return stream, first_reply
            except BaseException:
                await stream.close()
                raise

    async def _send(self, path: str, body: Mapping[str, Any]) -> httpx2.Response:
        if self._address.user and not self._token and path != AUTHENTICATE:
            reply = await self._call_once(
                AUTHENTICATE, {"name": self._address.user, "password": self._address.password}
            )
            self._token = reply["token"]
        if self._http.is_closed:
            raise CutOff(f"the directory at {self.retry.address} was closed here; open it again")
        headers = {"Grpc-Metadata-hasleader": "true"} | ({"Authorization": self._token} if self._token else {})
        request = self._http.build_request("POST", self._url(path), json=body, headers=headers)
        return await self._http.send(request, stream=True)

    @contextmanager
    def _member_attempt(self) -> Iterator[None]:
        """Run one request at the current member. Go to the next one after a failure; a refusal counts as a reply."""
        index = self._member_index
        try:
            yield
        except EtcdError as error:
            if error.code == UNAUTHENTICATED and self._token:
                self._token = ""
                raise NoReply(str(error)) from error
            raise _translated(error) from error
        except BaseException as error:
            member = self._member
            self._member_index = index + 1
            if isinstance(error, (httpx2.HTTPError, httpx2.StreamError, json.JSONDecodeError)):
                raise NoReply(f"{member}: {type(error).__name__} {error}".rstrip()) from error
            raise

    def _url(self, path: str) -> str:
        return f"{self._address.scheme}://{self._member}/v3/{path}"

    @property
    def _member(self) -> str:
        return self._address.members[self._member_index % len(self._address.members)]


def _result(reply: Any) -> dict[str, Any]:
    """The content of a reply; the gateway wraps the replies of a stream in `result`."""
    error = reply.get("error")
    if error is None:
        return reply.get("result", reply)
    if isinstance(error, dict):
        code, message = error.get("grpc_code", 2), error.get("message", "")
    else:
        code = reply.get("code", 2)
        message = error
    raise NoReply(message) if code in RETRYABLE else EtcdError(code, message)


def _translated(error: EtcdError) -> Exception:
    """The exception for a refusal that concerns this client or the cluster; otherwise the refusal itself."""
    if error.code in (PERMISSION_DENIED, UNAUTHENTICATED) or any(refusal in str(error) for refusal in LOGIN_REFUSED):
        return UsageError(f"etcd rejects this client ({error}); give its user and password in the URL")
    if NO_SPACE in str(error):
        return Full(f"etcd has no room ({error}); compact and defragment it")
    return NoReply(str(error)) if error.code == RESOURCE_EXHAUSTED else error
