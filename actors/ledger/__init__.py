"""The replication protocol: cores without I/O, and in ``driver`` the one shell that runs them."""
