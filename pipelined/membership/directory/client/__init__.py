"""The clients of a directory, one for each kind of URL, and the retries that they share."""
