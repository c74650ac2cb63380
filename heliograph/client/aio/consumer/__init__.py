"""Consumers and readers: permits bound what is received ahead (I15), and what is not acknowledged is redelivered."""
