"""The sums of gradients: over the ranks that hold a bucket, and exactly, so that their order changes no bit."""
