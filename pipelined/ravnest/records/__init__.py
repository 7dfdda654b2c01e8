"""The records of Ravnest in its directory, and the view of them that each process has."""
