"""How wishes for one bookie are carried out: other directories, another node, and the loss of a disk.

The outcome of a wish says which step is next, so another operator goes on there. No bookie runs while it is copied.
"""
