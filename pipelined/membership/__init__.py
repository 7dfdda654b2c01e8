"""Members of a swarm, or of another system: how a process joins, its records, and its view and bans of the others."""
