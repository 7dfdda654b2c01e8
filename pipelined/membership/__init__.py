"""The members that use a directory: how a process joins, its presence, and its view and bans of the others."""
