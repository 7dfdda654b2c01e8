"""The search for the cheapest way to split every operator over a group's ranks: the space, prices, searches."""
