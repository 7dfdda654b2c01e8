"""Programs: a schedule recorded as instructions, then checked, priced, drawn, and prepared for a rank. No torch."""
