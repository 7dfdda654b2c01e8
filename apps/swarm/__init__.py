"""A swarm's program, `python -m apps.swarm`: coordinator, peers, trainers, status and export."""
