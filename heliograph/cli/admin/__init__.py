"""The commands of administration: each calls operations of the table and prints the answers. No invariant."""
