"""Members of a swarm, or of another system: how a process joins, its presence, and its view and bans of the others."""
