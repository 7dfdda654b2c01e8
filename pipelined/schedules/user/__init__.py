"""Schedules of a user: loaded from a module, a file or a table, and run within a limit of bytecodes."""
