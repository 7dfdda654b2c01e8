"""Labelled images: read, enlarged, put in the order of a run, and counted where a model is right."""
