"""The runtime: actors, clocks, devices, stages, schedules, plans and traces. Importing this imports no torch."""

__version__ = "0.1.0"
