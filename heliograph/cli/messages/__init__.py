"""Commands that publish, consume and measure; they acknowledge a message only after it was printed or counted."""
