"""A worker of several ranks, its team, that split every tensor: its model contract, pieces of parameters, records."""
