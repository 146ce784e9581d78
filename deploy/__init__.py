"""The `shoal` command and all that runs around the serving processes."""
