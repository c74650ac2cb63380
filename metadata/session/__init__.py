"""The sessions of all backends' clients: clock, life and watches. Their owners hear LOST in time (I13)."""
