"""Endpoints over TCP: a listener, one connection with each party, and requests that share it in turns."""
