"""The records of a swarm in its directory, the view of them that each process has, and the committed steps."""
