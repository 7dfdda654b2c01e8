"""Timing of stages, links, sums, codecs and the runtime, for planner and doctor; the bytes that a step will send."""
