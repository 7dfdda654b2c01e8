"""Labelled images: read, resized, put in the order of a run, and counted where a model is right."""
