"""The periodic work on the topics that this broker has loaded: rolling, expiry, trimming, quotas, and idle topics. Each
is looked at when something happened in it or is due by time, so a topic at rest costs nothing (I24)."""
