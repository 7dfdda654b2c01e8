"""Pictures of timelines: of one, or of a measured step beside the expected one, with their differences."""
