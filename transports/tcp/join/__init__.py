"""How ranks find one another over TCP: meeting points and rendezvous."""
