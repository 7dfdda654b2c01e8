"""Training without a flush: weights in versions, updates after every N gradients; see docs/asynchronous.md."""
