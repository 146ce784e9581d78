"""The `shoal` command: parses options and hands over. What a command needs is imported when it runs."""

import argparse
import importlib.metadata
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from api_server.config import ApiServerConfig
from coordinator.config import CoordinatorConfig
from deploy.cache import CACHE_VARIABLE, cache_directory
from deploy.config import all_serve_options
from deploy.control_options import add_parsers
from deploy.failure_notice import LastError
from deploy.options import (
    Option,
    OptionError,
    add_flags,
    check_keys,
    given_values,
    options_of,
    read_file,
    unknown_variables,
)
from engine_core.config import EngineCoreConfig
from protocol.lifeline import LIFELINE_FD, Lifeline, Notice
from protocol.logs import set_up_logging

logger = logging.getLogger("shoal.cli")

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
"""As a shell says it of a command that SIGINT ended."""
CONFIG_VARIABLE = "SHOAL_CONFIG"

_COMMAND_OPTIONS: dict[str, tuple[Option, ...]] = {
    "serve": all_serve_options(),
    "coordinator": options_of(CoordinatorConfig),
    "engine-core": options_of(EngineCoreConfig),
    "api-server": options_of(ApiServerConfig),
}
_DOCTOR_OPTIONS = tuple(option for option in all_serve_options() if option.name in ("host", "port"))
_HELP = {
    "serve": "run a whole cluster on this machine",
    "coordinator": "run the coordinator alone",
    "engine-core": "run one engine core alone",
    "api-server": "run one API server alone",
}

C = TypeVar("C", ApiServerConfig, CoordinatorConfig, EngineCoreConfig)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line, by default this process's own; returns 0, 1 for a failure, 2 for wrong usage."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    flags = vars(_parser(with_bench="bench" in arguments[:1]).parse_args(arguments))
    if argv is None and (flags["command"] == "engine-core" or flags.get("bench_command") == "engine"):
        _preload_openblas()
    try:
        return _HANDLERS[flags["command"]](flags)
    except OptionError as error:
        print(f"shoal {flags['command']}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print(f"shoal {flags['command']}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _parser(with_bench: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shoal",
        description="Serves open-weight language models with MLX.",
        epilog=f"Cache: {CACHE_VARIABLE}, now {cache_directory()}. Each option of serve and of the roles is also an "
        "environment variable and a key of the TOML file that --config names: see shoal serve --help. serve and the "
        "roles end with 0 when SIGTERM drained them, 1 after a failure, 2 when a restart would not help, 3 when they "
        "were ended by force (a second signal, or a process that had to be killed).",
    )
    parser.add_argument("--version", action="version", version=f"shoal {importlib.metadata.version('shoal')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command, options in _COMMAND_OPTIONS.items():
        sub = commands.add_parser(command, help=_HELP[command], description=_HELP[command])
        sub.add_argument("--config", metavar="FILE", help=f"TOML file with options [{CONFIG_VARIABLE}]")
        add_flags(sub, options, positional="model" if command == "serve" else None)
    doctor = commands.add_parser("doctor", help="what this machine can do, and what is missing")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    add_flags(doctor, _DOCTOR_OPTIONS)
    pull = commands.add_parser("pull", help="fetch a model and print its folder")
    pull.add_argument("model", metavar="MODEL", help="demo, a hub id (owner/name), or a folder to check")
    commands.add_parser("models", help="list the models that need no download")
    _add_keys(commands)
    add_parsers(commands)
    _add_bench(commands, with_bench)
    return parser


def _add_keys(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    keys = commands.add_parser("keys", help="make this machine's key pair, for a cluster of several machines")
    actions = keys.add_subparsers(dest="action", required=True, metavar="ACTION")
    make = actions.add_parser("make", help="write a new secret key to FILE, print its public key")
    make.add_argument("file", metavar="FILE", help="must not be there yet; only its owner may read it")
    public = actions.add_parser("public", help="print the public keys of secret key files")
    public.add_argument("files", metavar="FILE", nargs="+")


def _add_bench(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", in_full: bool) -> None:
    if in_full:
        from benchmarks.cli import add_bench_parser

        add_bench_parser(commands)
    else:
        commands.add_parser("bench", help="measure a server or an engine core", add_help=False)


# --- configuration -------------------------------------------------------------------------------------------


def _values(command: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    """What flags, environment and file say for this command's options. Raises OptionError."""
    options = _COMMAND_OPTIONS[command]
    file: dict[str, Any] = {}
    if path := flags["config"] or os.environ.get(CONFIG_VARIABLE):
        file = read_file(Path(path))
        check_keys(Path(path), file, _known(lambda option: option.name))
    return given_values(options, flags, os.environ, file)


def _known(part: Callable[[Option], str]) -> list[str]:
    return sorted({part(option) for options in _COMMAND_OPTIONS.values() for option in options})


def _set_up(process_name: str, values: Mapping[str, Any]) -> None:
    set_up_logging(process_name, values.get("log_level", "info"), values.get("log_format", "text"))
    known = [*_known(lambda option: option.variable), CACHE_VARIABLE, CONFIG_VARIABLE, LIFELINE_FD]
    for complaint in unknown_variables(os.environ, known):
        logger.warning("%s", complaint)


def _run_role(
    command: str, config_type: type[C], flags: Mapping[str, Any], import_run: Callable[[], Callable[[C, Lifeline], int]]
) -> int:
    lifeline = Lifeline.from_environment()  # first, so that a supervisor's death is seen from here on
    config = msgspec.convert(_values(command, flags), config_type)
    name = "coordinator" if isinstance(config, CoordinatorConfig) else config.name
    _set_up(name, {"log_level": config.log_level, "log_format": config.log_format})
    last_error = LastError()
    logging.getLogger().addHandler(last_error)
    code = import_run()(config, lifeline)
    if code != 0:
        last_error.tell(lifeline)
    return code


# --- commands ------------------------------------------------------------------------------------------------


def _coordinator(flags: Mapping[str, Any]) -> int:
    def import_run() -> Callable[[CoordinatorConfig, Lifeline], int]:
        from coordinator.main import run

        return run

    return _run_role("coordinator", CoordinatorConfig, flags, import_run)


def _engine_core(flags: Mapping[str, Any]) -> int:
    def import_run() -> Callable[[EngineCoreConfig, Lifeline], int]:
        from engine_core.main import run

        return run if by_supervisor else lambda config, lifeline: _with_folder(run, config, lifeline)

    by_supervisor = LIFELINE_FD in os.environ  # it has made a folder of the model's name
    return _run_role("engine-core", EngineCoreConfig, flags, import_run)


def _with_folder(run: Callable[[EngineCoreConfig, Lifeline], int], config: EngineCoreConfig, lifeline: Lifeline) -> int:
    """Runs an engine core that was started by hand: its model may be called what `shoal serve` and `pull` call it."""
    from deploy.machine import OPENBLAS_ADVICE, OPENBLAS_MISSING, lacks_openblas

    if config.model.startswith("sim:"):
        return run(config, lifeline)
    if lacks_openblas(os.environ):
        logger.warning("OpenBLAS %s; %s", OPENBLAS_MISSING, OPENBLAS_ADVICE)
    from deploy.launch import hub_name

    try:
        from deploy.demo_model import DemoModelError
        from deploy.models import ModelError, pull
    except ModuleNotFoundError as error:
        _lacks_engine("engine-core", error)
        return EXIT_USAGE

    try:
        folder = pull(config.model, cache_directory())
    except (DemoModelError, ModelError) as error:
        logger.error("%s", error)
        return EXIT_USAGE
    name = config.served_model_name or hub_name(config.model, folder)
    return run(msgspec.structs.replace(config, model=str(folder), served_model_name=name), lifeline)


def _preload_openblas() -> None:
    """Starts this process over with OpenBLAS preloaded, where MLX needs it and whoever started us has not done so."""
    from deploy.machine import openblas_environment

    missing = openblas_environment(os.environ)
    if missing:
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **missing})


def _api_server(flags: Mapping[str, Any]) -> int:
    def import_run() -> Callable[[ApiServerConfig, Lifeline], int]:
        from api_server.main import run

        return run

    return _run_role("api-server", ApiServerConfig, flags, import_run)


def _serve(flags: Mapping[str, Any]) -> int:
    values = _values("serve", flags)
    _set_up("shoal", values)
    from deploy.supervisor import serve

    return serve(values)


def _pull(flags: Mapping[str, Any]) -> int:
    by_hand = LIFELINE_FD not in os.environ
    lifeline = Lifeline.from_environment()
    set_up_logging("pull", "info", "text")
    try:
        from deploy.demo_model import DemoModelError
        from deploy.models import ModelError, pull
    except ModuleNotFoundError as error:
        lifeline.notify(Notice("failed", detail=_lacks_engine("pull", error)))
        return 1

    try:
        folder = pull(flags["model"], cache_directory())
    except (DemoModelError, ModelError) as error:
        if by_hand:
            print(f"shoal pull: {error}", file=sys.stderr)
        lifeline.notify(Notice("failed", detail=str(error)))
        return 1
    lifeline.notify(Notice("ready", detail=str(folder)))
    if by_hand:
        print(folder)
    return 0


def _models(_flags: Mapping[str, Any]) -> int:
    try:
        from deploy.models import local_models
    except ModuleNotFoundError as error:
        _lacks_engine("models", error)
        return 1
    for name, folder, size_bytes in local_models(cache_directory()):
        print(f"{name}\t{size_bytes / 1e6:.0f} MB\t{folder}")
    return 0


def _keys(flags: Mapping[str, Any]) -> int:
    from deploy.keys import make_keys, show_public_keys

    if flags["action"] == "make":
        return make_keys(Path(flags["file"]))
    return show_public_keys([Path(file) for file in flags["files"]])


def _lacks_engine(command: str, error: ModuleNotFoundError) -> str:
    """Says so; returns what it said."""
    reason = f"{error.name} is not installed: pip install 'shoal[engine]'"
    print(f"shoal {command}: {reason}", file=sys.stderr)
    return reason


def _doctor(flags: Mapping[str, Any]) -> int:
    from deploy.doctor import run_doctor

    values = given_values(_DOCTOR_OPTIONS, flags, os.environ, {})
    defaults = {option.name: option.default for option in _DOCTOR_OPTIONS}
    return run_doctor(**{**defaults, **values}, as_json=flags["json"])


def _bench(flags: Mapping[str, Any]) -> int:
    from benchmarks.cli import run_bench

    return run_bench(argparse.Namespace(**flags), _model_folder)


def _model_folder(model: str) -> str:
    """The folder of what a user calls a model, fetched when it is not there. Raises ValueError."""
    from deploy.demo_model import DemoModelError
    from deploy.models import ModelError, pull

    try:
        return str(pull(model, cache_directory()))
    except (DemoModelError, ModelError) as error:
        raise ValueError(str(error)) from error


def _control(flags: Mapping[str, Any]) -> int:
    from deploy.control_commands import run

    return run(flags)


_HANDLERS: dict[str, Callable[[Mapping[str, Any]], int]] = {
    "serve": _serve,
    "coordinator": _coordinator,
    "engine-core": _engine_core,
    "api-server": _api_server,
    "doctor": _doctor,
    "pull": _pull,
    "models": _models,
    "keys": _keys,
    "bench": _bench,
    "drain": _control,
    "restart": _control,
    "scale": _control,
}

if __name__ == "__main__":
    sys.exit(main())
