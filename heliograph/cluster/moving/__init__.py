"""A bookie that is given other directories, on its node or another: copied, verified, and served from there."""
