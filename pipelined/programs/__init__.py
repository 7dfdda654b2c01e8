"""What a schedule means before anything runs: recorded, checked, priced, drawn, and prepared for a rank. No torch."""
