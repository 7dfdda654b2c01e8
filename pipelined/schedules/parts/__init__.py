"""What schedules are written with: the verbs of a worker, knobs, and the stage maps and orders that several share."""
