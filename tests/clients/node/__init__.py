"""JavaScript clients without a native library: ``pulsar-client`` of npm has its binary from elsewhere, and is C++."""
