"""The runtime: actors, clocks, devices, stages, schedules, plans and traces. Importing this imports no torch."""
