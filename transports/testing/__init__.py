"""For tests and benchmarks: worlds of ranks in one process, and the death of a rank; programs do not import this."""

from transports.testing.worlds import endpoint_world, kill, local_world, tcp_world

__all__ = ["endpoint_world", "kill", "local_world", "tcp_world"]
