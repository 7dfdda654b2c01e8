"""The members of any system: the view of them that each process keeps, requests to them, and probes."""
