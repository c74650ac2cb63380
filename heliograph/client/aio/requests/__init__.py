"""Requests and replies over topics: a caller waits for what a responder's function makes of its message.

Promises: a request is answered to its caller at most once, and is delivered to another responder if its own one dies.
"""
