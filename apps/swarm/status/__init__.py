"""What a swarm looks like from outside: as text, JSON, a page, and metrics for Prometheus."""
