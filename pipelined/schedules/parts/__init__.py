"""What schedules are written with: the verbs of a worker, stage maps, shapes, knobs, and orders that several share."""
