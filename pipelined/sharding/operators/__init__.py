"""The part of an operator that one rank computes where tensors are split over ranks."""
