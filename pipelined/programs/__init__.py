"""A program, which is a schedule recorded as instructions, and a plan, which lays a job out over ranks. No torch."""
