"""Connections, requests and answers: one client's requests are answered in order, within bounds (I15)."""
