"""The run of a program that trains in pipelines: its checks, its flags where it is resumed, and its loop."""
