"""From a user's model to the fastest plan: its sizes as the planner takes them, the planner's run, and its result."""
