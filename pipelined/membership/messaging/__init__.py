"""Requests between members of a directory: their fields and limits, their roles and versions, why one is rejected."""
