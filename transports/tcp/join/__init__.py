"""How ranks find one another over TCP: rendezvous, handshake, and the files that name a meeting point."""
