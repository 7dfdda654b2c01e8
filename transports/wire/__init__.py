"""Arrays and frames as bytes. No sockets."""
