"""Keywords and options, from the call to their checked form."""
