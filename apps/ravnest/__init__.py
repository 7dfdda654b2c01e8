"""`python -m apps.ravnest`: plan clusters of uneven PCs, and train in them a model that none of them can hold."""
