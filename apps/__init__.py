"""The programs, and the models and text that they train on."""
