"""A network in memory, on the virtual clock, with latency, loss, cut links and processes that end."""
