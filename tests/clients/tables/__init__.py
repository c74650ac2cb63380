"""Topics as tables, compared row for row with what stock readers find in them."""
