"""`python -m apps.ravnest`: plan the clusters of a pool of uneven PCs."""
