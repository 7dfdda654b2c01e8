"""Timing of stages, links, sums, codecs and the runtime, for the planner and the doctor."""
