"""Rows of tables into messages: the columns of their fields, the schema of the values, the writer of tasks."""
