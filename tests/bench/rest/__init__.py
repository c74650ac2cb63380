"""A cluster of ``helio up`` that serves nothing: its memory, its processor time, and how soon it is up."""
