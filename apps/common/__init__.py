"""What every program shares: paths of a command line, progress on a terminal, files of JSON lines."""
