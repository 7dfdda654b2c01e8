"""A worker of several ranks, its team, that split every tensor: the model, the stage, and the pieces of parameters."""
