"""How often members and coordinator tell one another that they are alive, and what silence means."""

HEARTBEAT_S = 1.0
"""A member says something at least this often; the coordinator answers each Heartbeat of an API server."""
SILENCE_S = 3.0
"""Who has not been heard for so long is taken for dead or stopped: time for two heartbeats to be late."""
