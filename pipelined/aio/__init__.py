"""Small tools over asyncio: tasks, notifiers, time-outs, back-off, latency estimates, clocks."""
