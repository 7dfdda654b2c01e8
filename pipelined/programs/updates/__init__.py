"""The sums and updates of a step: buckets, channels, starts and rules, which training and the simulator share."""
