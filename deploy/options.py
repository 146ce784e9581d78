"""From one declaration of an option to its flag, environment variable and TOML key, and back to a checked value.

An option is a field of a configuration Struct: its type, limits, default and description (msgspec Meta) stand there
and nowhere else. `port` is the flag `--port`, the variable `SHOAL_PORT` and the key `port` of the file named by
`--config`. A flag wins over a variable, a variable over the file, the file over the default.
"""

import argparse
import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import msgspec

from protocol.option_words import choices_of, wanted

PREFIX = "SHOAL_"


class OptionError(Exception):
    """An option is unknown, missing or has a bad value; the message names the flag, variable or key."""


class Option(msgspec.Struct, frozen=True):
    """One option of one or more commands."""

    name: str
    type: Any
    default: Any
    """msgspec.NODEFAULT when it must be given."""
    description: str
    secret: bool = False
    """Never on a command line that Shoal writes, never in a log."""

    @property
    def flag(self) -> str:
        """`--engine-name`."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """`SHOAL_ENGINE_NAME`."""
        return PREFIX + self.name.upper()

    @property
    def repeatable(self) -> bool:
        """Takes several values: the flag again and again, a comma-separated variable, a TOML array."""
        return get_origin(_plain(self.type)) is tuple


def _plain(annotated: Any) -> Any:
    return get_args(annotated)[0] if get_origin(annotated) is Annotated else annotated


def options_of(config_type: type[msgspec.Struct], leave_out: Iterable[str] = ()) -> tuple[Option, ...]:
    """The options that the Struct declares, but those named in `leave_out`."""
    left_out = frozenset(leave_out)
    return tuple(_option(field) for field in msgspec.structs.fields(config_type) if field.name not in left_out)


def _option(field: msgspec.structs.FieldInfo) -> Option:
    metas = [meta for meta in get_args(field.type) if isinstance(meta, msgspec.Meta)]
    (meta,) = metas
    return Option(
        name=field.name,
        type=field.type,
        default=field.default,
        description=meta.description or "",
        secret=bool((meta.extra or {}).get("secret", False)),
    )


def add_flags(parser: argparse.ArgumentParser, options: Iterable[Option], positional: str | None = None) -> None:
    """Adds a flag for each option; `positional` names the one that is an argument without a flag."""
    for option in options:
        if option.name == positional:
            parser.add_argument(
                option.name, metavar=option.name.upper(), nargs="?", default=None, help=_help_text(option)
            )
            continue
        parser.add_argument(
            option.flag,
            dest=option.name,
            default=None,
            action="append" if option.repeatable else "store",
            metavar="|".join(choices_of(option.type)) or option.name.rpartition("_")[2].upper(),
            help=_help_text(option),
        )


def _help_text(option: Option) -> str:
    if option.default is msgspec.NODEFAULT:
        default = "required"
    elif option.default in (None, ()):
        default = ""
    else:
        default = f"default: {_shown(option.default)}"
    notes = "; ".join(note for note in (default, option.variable) if note)
    return f"{option.description} [{notes}]".replace("%", "%%")


def _shown(default: Any) -> str:
    """As it would be given on a command line."""
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


def read_file(path: Path) -> dict[str, Any]:
    """The keys of a TOML file. Raises OptionError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{path}: {error}") from error


def check_keys(path: Path, keys: Iterable[str], known: Sequence[str]) -> None:
    """Raises OptionError for a key that no command knows. One file may serve several commands."""
    for key in keys:
        if key not in known:
            raise OptionError(f"{path}: unknown key {key!r}{_suggestion(key, known)}")


def unknown_variables(environment: Mapping[str, str], known: Sequence[str]) -> list[str]:
    """A complaint for each SHOAL_... variable that is no option (not an error: schedulers set such names too)."""
    return [
        f"environment variable {name} is not an option of Shoal{_suggestion(name, known)}"
        for name in sorted(environment)
        if name.startswith(PREFIX) and name not in known
    ]


def _suggestion(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def given_values(
    options: Iterable[Option],
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    file: Mapping[str, Any],
) -> dict[str, Any]:
    """Checked values of the options that were given somewhere. Raises OptionError.

    `flags` holds strings (lists of strings for repeatable options), None for a flag that was not used.
    """
    values: dict[str, Any] = {}
    for option in options:
        if (text := flags.get(option.name)) is not None:
            values[option.name] = _converted(option, text, option.flag, from_text=True)
        elif (text := environment.get(option.variable)) is not None:
            parts = [part.strip() for part in text.split(",")] if option.repeatable else text
            values[option.name] = _converted(option, parts, option.variable, from_text=True)
        elif option.name in file:
            values[option.name] = _converted(option, file[option.name], f"key {option.name!r}", from_text=False)
        elif option.default is msgspec.NODEFAULT:
            raise OptionError(f"{option.name} is missing: give {option.flag}, {option.variable} or its key in a file")
    return values


def _converted(option: Option, value: Any, source: str, from_text: bool) -> Any:
    try:
        converted = msgspec.convert(value, option.type, strict=not from_text)
    except msgspec.ValidationError as error:
        shown = "" if option.secret else f" (got {value if from_text else repr(value)})"
        raise OptionError(f"{source}: must be {wanted(option.type)}{shown}") from error
    if option.secret and any(not part.strip() for part in converted):
        raise OptionError(f"{source}: must not be empty (to do without, leave it out)")
    return converted


def as_flags(options: Iterable[Option], values: Mapping[str, Any]) -> list[str]:
    """The command line that gives these values; secrets are left out (see `as_environment`)."""
    arguments = []
    for option in options:
        value = values.get(option.name)
        if value is None or option.secret:
            continue
        for item in value if option.repeatable else (value,):
            arguments.append(f"{option.flag}={item}")
    return arguments


def as_environment(options: Iterable[Option], values: Mapping[str, Any]) -> dict[str, str]:
    """The variables that give the secrets among these values. Raises OptionError for one that cannot travel so."""
    variables = {}
    for option in options:
        value = values.get(option.name)
        if not option.secret or not value:
            continue
        parts = list(value) if option.repeatable else [value]
        if any("," in part for part in parts):
            raise OptionError(f"{option.flag}: a value must not contain a comma")
        variables[option.variable] = ",".join(parts)
    return variables
