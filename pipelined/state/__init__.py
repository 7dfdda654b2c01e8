"""What training has learned, as bytes: checkpoints of a whole job, and the states of single stages."""
