"""What grows with the number of topics, ledgers, bookies and connections: ``make scale`` measures each limit."""
