"""What a node has of its stage: the state, what it saves of it and sends to other nodes, and the order of its work."""
