"""The flags of the commands of Ravnest, in groups, and what they say is trained."""
