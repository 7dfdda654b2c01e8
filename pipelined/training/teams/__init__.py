"""A worker of several ranks, its team, that split every tensor: the contract of its model, pieces of parameters."""
