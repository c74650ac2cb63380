"""The asyncio client. The sync handles of ``heliograph`` run this same code on a loop of their own."""
