"""`shoal bench ...`; `bench serve` also as `python -m benchmarks.cli serve ...`.

Exit codes: 0 measured; 1 requests failed (unless --allow-errors); 2 nothing could be measured; 130 interrupted.
"""

import argparse
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from benchmarks.body import parse_extra_body
from benchmarks.config import ServeBenchConfig
from benchmarks.engine_config import EngineBenchConfig
from benchmarks.options import add_options, read_options

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Callable

    from benchmarks.session import Measurement

REQUESTS_FAILED = 1
NOT_MEASURED = 2
INTERRUPTED = 130

OPEN_FILES = 8192
"""Soft limit of open files to ask for: one connection a request in flight; macOS starts with 256."""


def add_bench_parser(subparsers: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `bench` with its own subcommands to the `shoal` command."""
    bench = subparsers.add_parser("bench", help="measure a server (bench serve) or an engine core (bench engine)")
    commands = bench.add_subparsers(dest="bench_command", required=True)
    _add_serve_parser(commands)
    _add_engine_parser(commands)


def _add_serve_parser(subparsers: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    serve = subparsers.add_parser(
        "serve",
        help="load generator for any OpenAI-compatible server",
        description="Puts load on an OpenAI-compatible server and reports rates, latencies and goodput.",
    )
    add_options(serve, ServeBenchConfig)


def _add_engine_parser(subparsers: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    engine = subparsers.add_parser(
        "engine",
        help="measure an engine core in process: steps, prefill, joins, sampling, orders to the device",
        description="Loads a model into this process and measures an engine core without HTTP and sockets.",
    )
    add_options(engine, EngineBenchConfig)


def run_bench(args: argparse.Namespace, find_model: "Callable[[str], str] | None" = None) -> int:
    """Runs the subcommand that was parsed. Returns the exit code.

    `find_model` gives the folder of what a user calls a model, and raises ValueError when there is none; without it
    the model must be a folder.
    """
    try:
        if args.bench_command == "engine":
            return _engine(args, find_model or (lambda model: model))
        return _serve_checked(args)
    except KeyboardInterrupt:
        return INTERRUPTED


def _serve_checked(args: argparse.Namespace) -> int:
    try:
        config = read_options(args, ServeBenchConfig)
        parse_extra_body(config.extra_body)
        _check_files(config.json, config.records)
    except ValueError as error:
        return _give_up(str(error))
    except OSError as error:
        return _give_up(f"{error.filename} cannot be written: {error.strerror}")
    return _serve(config)


def _engine(args: argparse.Namespace, find_model: "Callable[[str], str]") -> int:
    try:
        from rich.console import Console

        from benchmarks.engine_bench import measure_engine
        from engine_core.device import ModelRefused
    except ModuleNotFoundError as error:
        return _give_up(f"{error.name} is not installed: pip install 'shoal[engine,bench]'")
    from benchmarks.engine_report import print_report, to_json, to_markdown

    progress = Console(stderr=True)
    try:
        config = read_options(args, EngineBenchConfig)
        _check_files(config.json, config.markdown)
        config = msgspec.structs.replace(config, model=find_model(config.model))
        report = measure_engine(config, lambda line: progress.print(line, style="dim", markup=False))
    except (ModelRefused, ValueError) as error:
        return _give_up(str(error))
    except OSError as error:
        return _give_up(f"{error.filename} cannot be written: {error.strerror}")
    print_report(report, Console())
    for name, content in ((config.json, to_json(report)), (config.markdown, to_markdown(report).encode())):
        if name is not None:
            Path(name).write_bytes(content)
    return 0


def _serve(config: ServeBenchConfig) -> int:
    try:
        import aiohttp  # noqa: F401
    except ModuleNotFoundError:
        return _give_up("the load generator needs aiohttp: pip install 'shoal[bench]'")
    import uvloop
    from rich.console import Console

    from benchmarks.client import EndpointError
    from benchmarks.session import measure
    from benchmarks.table import print_report

    progress = Console(stderr=True)
    _allow_open_files()
    try:
        measurement = uvloop.run(measure(config, lambda line: progress.print(line, style="dim", markup=False)))
    except (EndpointError, ValueError, OSError) as error:
        return _give_up(str(error))
    print_report(measurement.report, Console())
    try:
        _write_files(config, measurement)
    except OSError as error:
        return _give_up(f"{error.filename} cannot be written: {error.strerror}")
    return REQUESTS_FAILED if measurement.report.failed and not config.allow_errors else 0


def _check_files(*names: str | None) -> None:
    """Opens the files that will be written, so that no measurement is lost. Raises OSError, which names the file."""
    for name in names:
        if name is not None:
            was_there = Path(name).exists()
            with Path(name).open("ab"):
                pass
            if not was_there:
                Path(name).unlink()


def _write_files(config: ServeBenchConfig, measurement: "Measurement") -> None:
    from benchmarks.report import to_json

    if config.json is not None:
        Path(config.json).write_bytes(to_json(measurement.report))
    if config.records is not None:
        Path(config.records).write_bytes(msgspec.json.Encoder().encode_lines(measurement.records))


def _allow_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _give_up(reason: str) -> int:
    print(f"shoal bench: {reason}", file=sys.stderr)
    return NOT_MEASURED


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry of `python -m benchmarks.cli`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cli")
    _add_serve_parser(parser.add_subparsers(dest="bench_command", required=True))
    return run_bench(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
