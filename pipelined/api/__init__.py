"""The front door: a user's own torch model, data and optimizer, trained by one call."""
