"""What flows between stages: its trees of tensors, their codec, and the messages that are received ahead."""
