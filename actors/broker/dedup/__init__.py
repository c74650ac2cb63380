"""Recognize entries that a producer sends again, and store the state of the producers.

Entries after the last durable snapshot are kept from trimming (I14), and a lost topic answers no duplicate (I13).
"""
