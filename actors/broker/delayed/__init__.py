"""Hold entries of shared subscriptions back until their delivery time, a bounded number of times in memory (I15).

The entries' own metadata decides; the stored index only saves reading them, and may be lost.
"""
