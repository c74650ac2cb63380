"""Decide which producers may publish to a topic, and give each its outcomes in order.

Keeps I2 (receipts in entry order) and I15 (a bounded number of waiting producers).
"""
