"""`shoal drain`, `shoal restart`, `shoal scale`: find the running supervisor, ask it, show what it says."""

import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from deploy.control_messages import ControlAnswer, ControlRequest, Count, Done, Drain, RestartRolling, Scale
from deploy.run_directory import control_socket, running_directories
from protocol.option_words import wanted

_decoder = msgspec.json.Decoder(ControlAnswer)


class ControlError(Exception):
    """The supervisor could not be asked, or did not do it; the message says why."""


class UsageError(Exception):
    """The command line does not make sense; the message says why."""


def run(flags: Mapping[str, Any]) -> int:
    """Does what the flags of one of the three say; returns the exit code."""
    command = flags["command"]
    try:
        request = _request(flags)
        for answer in _ask(_directory(flags["run_dir"]), request):
            print(
                answer.text, file=sys.stderr if isinstance(answer, Done) and not answer.ok else sys.stdout, flush=True
            )
    except UsageError as error:
        print(f"shoal {command}: {error}", file=sys.stderr)
        return 2
    except ControlError as error:
        print(f"shoal {command}: {error}", file=sys.stderr)
        return 1
    return 0 if isinstance(answer, Done) and answer.ok else 1


def _request(flags: Mapping[str, Any]) -> ControlRequest:
    match flags["command"]:
        case "drain":
            return Drain(flags["name"])
        case "restart":
            return RestartRolling()
        case _:
            engines, api_servers = (_count(flag, flags[flag]) for flag in ("engines", "api_servers"))
            if engines is None and api_servers is None:
                raise UsageError("give --engines, --api-servers or both")
            return Scale(engines, api_servers)


def _count(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return msgspec.convert(text, Count, strict=False)
    except msgspec.ValidationError as error:
        flag = "--" + name.replace("_", "-")
        raise UsageError(f"{flag}: must be {wanted(Count)} (got {text})") from error


def _directory(given: str | None) -> Path:
    if given is not None:
        return Path(given)
    running = running_directories()
    if not running:
        raise ControlError("no `shoal serve` of this user runs (or it was given a --run-dir: give it here, too)")
    if len(running) > 1:
        listed = ", ".join(str(path) for path in sorted(running))
        raise ControlError(f"several run: choose with --run-dir ({listed})")
    return running[0]


def _ask(directory: Path, request: ControlRequest) -> Iterator[ControlAnswer]:
    """The answers, Done as the last. Raises ControlError."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(control_socket(directory)))
            connection.sendall(msgspec.json.encode(request) + b"\n")
            with connection.makefile("rb") as lines:
                for line in lines:
                    answer = _decoder.decode(line)
                    yield answer
                    if isinstance(answer, Done):
                        return
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise ControlError(f"no `shoal serve` runs in {directory}") from error
        except OSError as error:
            raise ControlError(f"{directory}: {error.strerror}") from error
        except msgspec.MsgspecError as error:
            raise ControlError(f"the supervisor in {directory} is of another release: {error}") from error
    raise ControlError("the supervisor ended before it was done")
