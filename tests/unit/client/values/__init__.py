"""Every value that a producer takes, its own schema reads back equal, or it is refused by the name of its field."""
