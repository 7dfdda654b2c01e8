"""Small tools over asyncio: nurseries, notifiers, time-outs, back-off, latency estimates, clocks, events."""
