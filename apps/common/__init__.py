"""The parts that programs share: flags, the choice of a plan, the report, checks of paths, JSON lines, processes."""
