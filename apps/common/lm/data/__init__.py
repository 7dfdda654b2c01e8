"""Text for language models: read, tokenised, cut into sequences and batches, and scored by n-gram models."""
