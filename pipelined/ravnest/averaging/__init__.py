"""Averages between clusters: rounds beside training or in a pause, refusals, and the state of late nodes."""
