"""A trainer of a swarm: takes microbatches through the stages by whichever peers answer soonest."""
