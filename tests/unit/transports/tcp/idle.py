"""How the kernel examines an idle connection."""

import socket


def limits_when_idle(sock: socket.socket) -> tuple[int, ...]:
    """Whether it does (1 or 0), and after how many seconds, at what interval in seconds, and how often."""
    examined = sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    names = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT
    return examined, *(sock.getsockopt(socket.IPPROTO_TCP, name) for name in names)
