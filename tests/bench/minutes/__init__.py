"""The first five minutes of a user, each step as it is typed, beside its aim."""
