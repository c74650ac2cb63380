"""Sessions of clients, their watches and ACLs, and the endpoint's own session with the store."""
