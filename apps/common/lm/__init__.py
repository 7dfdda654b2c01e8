"""Language models: what they are made of, the text they learn from, and the directories they are exchanged in."""
