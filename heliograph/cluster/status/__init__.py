"""What bookies tell of their scrubs. Nothing here changes anything."""
