"""Membership of engine cores and API servers, routing, admission: one thread, one poller, no tokens."""
