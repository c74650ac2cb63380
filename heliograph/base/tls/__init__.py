"""TLS of all listeners and connections: version 1.2 at least, chains and names verified, renewed files read again."""
