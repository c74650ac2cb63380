"""Schemas of topics: their versions in metadata, changed by compare-and-set (I9), and the rules by which a schema may
follow another."""
