"""A prepared program run with torch: stages, gradient sums, optimizer, evaluation, replay, planned bytes."""
