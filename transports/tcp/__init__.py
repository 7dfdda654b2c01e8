"""Messages over TCP: connections, flow control, and shortcuts between ranks of one machine."""
