"""The run of a program that trains in pipelines: its plan, checks, loop and report, and its flags when resumed."""
