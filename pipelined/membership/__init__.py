"""Which members a swarm has: the view each process keeps, requests to members, probes, evictions, access."""
