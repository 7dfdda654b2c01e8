"""Programs of several commands: from the command line to the exit code, their children, and the task they read."""
