"""A user's data: batches of whole steps, cut into microbatches, or the microbatches themselves."""
