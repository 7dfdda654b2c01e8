"""Timing what the planner and the doctor must know: stages, links, sums, codecs, and the runtime itself."""
