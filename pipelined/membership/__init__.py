"""The members of any system: how a process joins, its presence, and its view and bans of the others."""
