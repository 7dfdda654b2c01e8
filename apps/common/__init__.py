"""What programs share: flags, the choice of a plan, the report, checks of paths, files of JSON lines."""
