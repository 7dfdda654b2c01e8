"""What a rank holds of a job: its stages, computed alone or by a team, their parameters and running statistics."""
