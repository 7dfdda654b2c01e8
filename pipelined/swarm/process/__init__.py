"""One process of a swarm: how it joins, which parts it starts, what it prints, and how it ends."""
