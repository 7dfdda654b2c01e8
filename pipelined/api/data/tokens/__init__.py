"""Token ids in files: mapped where they are read, with their index, without a pass over the data."""
