"""Messages over TCP: the protocol between two ranks, flow control, shortcuts between ranks of one machine."""
