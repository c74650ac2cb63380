"""Tables: topics as record batches."""
