"""How ranks connect to one another over TCP: meeting points, rendezvous and handshake."""
