"""The command lines of `shoal drain`, `shoal restart` and `shoal scale`."""

import argparse

_FIND = "run directory of the `shoal serve` that is meant; needed when several run, or where it was given to serve"


def add_parsers(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the three commands."""
    drain = commands.add_parser(
        "drain",
        help="end one engine core or API server of a running cluster",
        description="No new requests go to the process; it exits when those it has have ended, or at the drain "
        "timeout. It is not started again: shoal scale brings another one.",
    )
    drain.add_argument("name", metavar="NAME", help="such as engine-0 or api-1")
    restart = commands.add_parser(
        "restart",
        help="replace the processes of a running cluster one by one",
        description="Each engine core is drained and started again, then each API server is replaced by a new one, "
        "then the coordinator is restarted; the next begins when the one before is ready. Requests go on. With a "
        "single engine core they are refused (503) while it loads.",
    )
    restart.add_argument("--rolling", action="store_true", required=True, help="one after the other (the only way)")
    scale = commands.add_parser(
        "scale",
        help="run more or fewer engine cores and API servers",
        description="New processes are started beside the others; those that are too many, the highest numbers, drain.",
    )
    scale.add_argument("--engines", metavar="N", help="engine cores to run")
    scale.add_argument("--api-servers", metavar="N", help="API servers to run")
    for parser in (drain, restart, scale):
        parser.add_argument("--run-dir", metavar="DIR", help=_FIND)
