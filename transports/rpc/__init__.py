"""An open network: parties come, go and fail, and are found by their addresses. One verb, `ask`."""

from transports.rpc.base import Answer, Endpoint, Handler, Party, Question, Refusal, Unreachable
from transports.rpc.registry import endpoint_schemes, open_endpoint

__all__ = [
    "Answer",
    "Endpoint",
    "Handler",
    "Party",
    "Question",
    "Refusal",
    "Unreachable",
    "endpoint_schemes",
    "open_endpoint",
]
