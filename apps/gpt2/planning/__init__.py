"""The plan of a GPT-2: sizes for planner and simulator, and how a plan is chosen, read from a file, and split."""
