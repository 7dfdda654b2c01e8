"""Endpoints of an open network: processes that come and go send requests to one another's addresses."""

from transports.rpc.base import Endpoint, Handler, Party, Rejected, Request, Response, Unreachable
from transports.rpc.registry import endpoint_schemes, open_endpoint

__all__ = [
    "Endpoint",
    "Handler",
    "Party",
    "Rejected",
    "Request",
    "Response",
    "Unreachable",
    "endpoint_schemes",
    "open_endpoint",
]
