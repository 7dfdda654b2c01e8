"""Pictures of a timeline, or of a measured step beside the expected one, with their differences."""
