"""A machine measured for planner and doctor: the whole measurement, fits to its times, the bytes a step will send."""
