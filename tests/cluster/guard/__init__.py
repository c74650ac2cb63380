"""Strangers at the listeners: what they may hold of a server's memory, and that others are served beside them."""
