"""Messages over TCP: the protocol between two ranks, and its flow control."""
