"""For tests and benchmarks: worlds of ranks in one process, with chosen nodes; programs do not import this."""

from transports.testing.worlds import endpoint_world, local_world, tcp_world

__all__ = ["endpoint_world", "local_world", "tcp_world"]
