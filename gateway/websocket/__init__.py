"""WebSocket sessions of producers, consumers and readers in Pulsar's frames. Keeps I11 and I15."""
