"""How messages of a queue are shared by its workers, as random histories show."""
