"""The guards of a listener: budgets of unfinished frames, counts of connections."""
