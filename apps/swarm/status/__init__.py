"""A swarm as seen from outside: as text, JSON, a web page, and metrics for Prometheus."""
