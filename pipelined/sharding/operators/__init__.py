"""What a rank computes of an operator whose tensors are split over ranks."""
