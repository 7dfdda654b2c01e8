"""Authenticated connections and the frames on them, for ranks (`tcp`) and endpoints (`rpc`) alike."""
