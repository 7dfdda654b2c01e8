"""The sizes of a user's model, as the planner takes them: of its layers, of a team that splits them, of one rank."""
