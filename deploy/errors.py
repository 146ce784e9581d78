"""Why a cluster is not started."""


class StartError(Exception):
    """The cluster cannot be started; the message says why."""
