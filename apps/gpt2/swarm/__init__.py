"""`python -m apps.gpt2 --schedule swarm`: the ranks of a job as the peers and trainers of a swarm."""
