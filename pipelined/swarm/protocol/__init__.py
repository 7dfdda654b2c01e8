"""The requests and replies of a swarm, one class each: fields, limits, and which role may send them to which."""
