"""The client: handles for asyncio and for threads, discovery through Ray, administration. It imports no server code.

Every queue and window of a handle has a named bound (I15).
"""
