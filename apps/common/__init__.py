"""What the programs share: flags, the run in pipelines, commands, status pages, models and data."""
