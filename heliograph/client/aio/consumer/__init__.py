"""Consumers and readers: permits bound the messages received ahead (I15); unacknowledged ones are redelivered."""
