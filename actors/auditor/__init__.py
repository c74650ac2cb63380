"""Keeps copies at strength: finds lost bookies and missing copies, and repairs them."""
