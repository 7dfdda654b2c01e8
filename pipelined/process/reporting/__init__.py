"""What a process reports of itself: events with their reasons, and the progress of slow work."""
