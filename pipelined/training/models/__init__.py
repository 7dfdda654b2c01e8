"""A user's model: a row of layers or a traced module, built and cut into stages."""
