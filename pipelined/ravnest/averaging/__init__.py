"""Averages between clusters: rounds, beside training or in a pause, what is refused, and what late nodes get with them."""
