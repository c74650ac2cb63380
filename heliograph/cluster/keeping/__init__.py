"""The process of a part, and the actor that keeps it: the process outlives its actor, and the next actor finds it.

Ray ends its workers when memory runs short on a machine, also for the sake of programs outside Ray. A part is a process
that joins Ray as a driver, which Ray does not end; the worker that it has in Ray only passes calls on.
"""
