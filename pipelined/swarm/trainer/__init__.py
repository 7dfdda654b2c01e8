"""A trainer of a swarm: takes microbatches through the stages, by the peers that reply soonest."""
