"""What a swarm keeps in its directory: the records, the view of them that each process has, the committed steps."""
