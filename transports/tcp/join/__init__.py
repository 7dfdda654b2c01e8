"""Ranks find one another over TCP: meeting points, rendezvous, Unix sockets between ranks of one machine."""
