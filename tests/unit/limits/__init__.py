"""The largest and the worst input of each door: the processor time and the memory that it may take (I15)."""
