"""What a peer computes with: one stage's parameters, gradient sums and optimizer."""
