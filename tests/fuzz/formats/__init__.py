"""Formats that hold bytes of clients: contents that look like the format itself are stored, damaged and read back."""
