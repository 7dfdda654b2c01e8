"""The members of any system: how a process joins, its presence, and the view of the others that it keeps."""
