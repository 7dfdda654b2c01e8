"""A user's row of layers, split over the ranks of a worker: what each kind of layer does, and the model of them all."""
