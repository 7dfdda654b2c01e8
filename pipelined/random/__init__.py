"""Random numbers that do not depend on the arrangement: keyed by microbatch and place, and the masks made of them."""
