"""Recipes on a metadata store: election, lock, claim, compare-and-set updates (I9), caches, ids."""
