"""The state of one stage as bytes: given to joining peers, fetched, kept on disk, and saved."""
