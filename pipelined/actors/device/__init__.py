"""The device of a rank: which one it is, the thread that computes on it and its queue, and the machine's memory."""
