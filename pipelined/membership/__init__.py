"""The members of any system: how they join, the view of them that each process keeps, requests to them, and probes."""
