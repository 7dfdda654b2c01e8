"""A user's own model in a swarm of unreliable machines: `pp.swarm.serve`, `pp.swarm.train`, `pp.swarm.local`."""
