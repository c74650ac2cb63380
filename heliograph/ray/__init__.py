"""All uses of Ray's private names, with nothing of ours below it.

All other folders use Ray as its documentation has it: the command ``ray start``, its options and environment
variables, and its public names (``tests/rules/test_ray.py``). ``docs/operations/your-ray.md`` lists each use with its
reason. Imports here are absolute: ``import ray`` is Ray.
"""
