"""The computation of a peer: parameters, gradient sums and optimizer of one stage."""
