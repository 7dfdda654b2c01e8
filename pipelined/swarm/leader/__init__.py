"""The leader of a swarm: work, assignments, and the commit of each step."""
