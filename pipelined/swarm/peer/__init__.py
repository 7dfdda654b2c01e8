"""A peer of a swarm: holds one stage, serves passes and sums, and moves to other stages."""
