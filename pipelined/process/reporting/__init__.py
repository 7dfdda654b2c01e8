"""What a process tells of itself: events with their reasons, and the progress of slow work."""
