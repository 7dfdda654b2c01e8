"""What all of training knows of a job: its description, its numerics, the contract of its model, a rank's context."""
