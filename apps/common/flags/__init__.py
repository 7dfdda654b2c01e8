"""Flags: dataclasses that make a command line and its help, those that programs share, and checks of their values."""
