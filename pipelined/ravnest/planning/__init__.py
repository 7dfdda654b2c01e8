"""Decisions before Ravnest trains: clusters, cuts, microbatches alive, and rings. No torch, no network."""
