"""The autograd graph of a stage: its backward in halves, and parts of its forward that run again in the backward."""
