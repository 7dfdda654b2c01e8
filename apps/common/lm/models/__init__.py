"""Language models, cut between any two layers, with their sizes in closed form."""
