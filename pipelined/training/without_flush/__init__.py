"""Training without a flush: weights in versions, updates behind each gradient or every N; see docs/asynchronous.md."""
