"""Values of training steps: written by key, read at random from bookies, dropped with their ledgers."""
