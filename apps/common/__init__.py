"""What the programs share: flags, the run in pipelines, commands, pages of status."""
