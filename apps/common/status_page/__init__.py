"""The status of a system, shown once, continuously, or as a page with the course of its run."""
