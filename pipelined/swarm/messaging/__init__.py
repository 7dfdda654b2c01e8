"""Requests between the processes of a swarm: their fields and limits, their roles and versions, why one is rejected."""
