"""An open network: parties come, go and fail, and are found by their addresses. One verb, `request`."""

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
