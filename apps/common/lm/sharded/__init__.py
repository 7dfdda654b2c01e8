"""A GPT-2 split over the ranks of a worker: its layouts, and the coroutine of its layers."""
