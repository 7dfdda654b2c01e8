"""Which way of splitting every operator over a group's ranks costs least: the space, its prices, the searches."""
