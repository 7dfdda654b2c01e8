"""Segments of training: a run of steps to a drain, one step with a flush, or overlapping steps with weight versions."""
