"""One module for each listener: how to run it, what its clients say, and what its answers may be."""
