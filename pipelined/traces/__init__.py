"""What every rank did in a step: recorded, gathered at rank 0, and kept in a file."""
