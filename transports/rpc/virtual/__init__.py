"""A network in memory, on the virtual clock, with latency, cut links, and processes that freeze or are killed."""
