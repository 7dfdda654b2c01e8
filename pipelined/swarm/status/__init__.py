"""The status of a swarm as seen from outside: read from the directory and from each process."""
