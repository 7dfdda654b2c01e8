"""What several algorithms are made of: a pass of a ring, pieces, folding, widening, the layout of windows."""
