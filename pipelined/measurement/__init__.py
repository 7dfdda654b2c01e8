"""A machine measured for planner and doctor: the whole measurement, and fits to its times."""
