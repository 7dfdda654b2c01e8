"""Messages between stages: their trees of tensors, their codec, and those that are received ahead."""
