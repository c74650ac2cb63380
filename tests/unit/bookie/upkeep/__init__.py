"""Tests of what a bookie does beside serving."""
