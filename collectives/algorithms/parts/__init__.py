"""Parts of several algorithms: a pass of a ring, pieces, folding, widening, the layout of windows."""
