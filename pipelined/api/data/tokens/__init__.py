"""Token ids in files: text turned into ids, shards with their index, spans mapped where they are read."""
