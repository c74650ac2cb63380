"""The JSON bodies, names and paths of the HTTP interface, checked before anything is done."""
