"""What every program shares: numbers and paths of a command line, progress on a terminal, files of JSON lines."""
