"""Values of a schema in a table: the Arrow type of each schema, and the conversion to it. No I/O.

A type and its conversion are made together, so that they cannot differ.
"""
