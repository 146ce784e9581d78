"""Each option has one declaration; flag, variable and key come from it, and mistakes are named."""

import argparse
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from deploy.cli import main
from deploy.options import (
    OptionError,
    add_flags,
    as_environment,
    as_flags,
    check_keys,
    given_values,
    options_of,
    read_file,
    unknown_variables,
)


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    address: Annotated[str, Meta(description="where")]
    port: Annotated[int, Meta(ge=0, le=65535, description="60 % of all ports")] = 8000
    ratio: Annotated[Annotated[float, Meta(gt=0)] | None, Meta(description="a share")] = None
    key: Annotated[tuple[str, ...], Meta(description="keys", extra={"secret": True})] = ()
    form: Annotated[Literal["text", "json"], Meta(description="a choice")] = "text"


OPTIONS = options_of(Sample)
NOT_GIVEN: dict[str, Any] = {"address": None, "port": None, "ratio": None, "key": None, "form": None}


def parse(*arguments: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_flags(parser, OPTIONS)
    return vars(parser.parse_args(arguments))


def test_flag_wins_over_variable_over_file_over_default() -> None:
    environment = {"SHOAL_PORT": "2", "SHOAL_ADDRESS": "env"}
    file = {"port": 3, "ratio": 0.5, "address": "file"}
    assert given_values(OPTIONS, parse("--port", "1"), environment, file) == {"port": 1, "address": "env", "ratio": 0.5}
    assert given_values(OPTIONS, parse(), environment, file)["port"] == 2
    assert given_values(OPTIONS, parse(), {"SHOAL_ADDRESS": "a"}, file)["port"] == 3
    assert "port" not in given_values(OPTIONS, parse(), {"SHOAL_ADDRESS": "a"}, {})


def test_repeatable_option_from_each_source() -> None:
    base = {"SHOAL_ADDRESS": "a"}
    assert given_values(OPTIONS, parse("--key", "x", "--key", "y"), base, {})["key"] == ("x", "y")
    assert given_values(OPTIONS, parse(), {**base, "SHOAL_KEY": "x,y"}, {})["key"] == ("x", "y")
    assert given_values(OPTIONS, parse(), base, {"key": ["x", "y"]})["key"] == ("x", "y")


@pytest.mark.parametrize(
    ("arguments", "environment", "file", "named"),
    [
        (["--port", "x"], {}, {}, "--port"),
        (["--port", "65536"], {}, {}, "--port"),
        ([], {"SHOAL_PORT": "-1"}, {}, "SHOAL_PORT"),
        ([], {}, {"port": "8000"}, "key 'port'"),
        ([], {"SHOAL_RATIO": "0"}, {}, "SHOAL_RATIO"),
    ],
)
def test_bad_value_names_where_it_came_from(
    arguments: list[str], environment: dict[str, str], file: dict[str, Any], named: str
) -> None:
    with pytest.raises(OptionError, match=named):
        given_values(OPTIONS, parse("--address", "a", *arguments), environment, file)


def test_bad_secret_is_not_repeated_in_the_error() -> None:
    with pytest.raises(OptionError) as failure:
        given_values(OPTIONS, NOT_GIVEN, {"SHOAL_ADDRESS": "a"}, {"key": "hunter2"})
    assert "hunter2" not in str(failure.value)


def test_missing_required_option_names_flag_and_variable() -> None:
    with pytest.raises(OptionError, match=r"--address.*SHOAL_ADDRESS"):
        given_values(OPTIONS, parse(), {}, {})


def test_unknown_key_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(OptionError, match=r"unknown key 'prot' \(did you mean 'port'\?\)"):
        check_keys(Path("shoal.toml"), ["prot"], ["port", "ratio"])
    check_keys(Path("shoal.toml"), ["port"], ["port", "ratio"])


def test_unknown_variable_is_complained_about_and_others_are_not() -> None:
    environment = {"SHOAL_PROT": "1", "SHOAL_PORT": "1", "HOME": "/"}
    (complaint,) = unknown_variables(environment, ["SHOAL_PORT"])
    assert "SHOAL_PROT" in complaint
    assert "did you mean 'SHOAL_PORT'" in complaint


def test_file_that_is_missing_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"none\.toml"):
        read_file(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("port = = 1")
    with pytest.raises(OptionError, match=r"bad\.toml.*line 1"):
        read_file(tmp_path / "bad.toml")
    (tmp_path / "good.toml").write_text("port = 1")
    assert read_file(tmp_path / "good.toml") == {"port": 1}


def test_values_survive_the_way_to_a_child_and_secrets_stay_off_its_command_line() -> None:
    values = {"address": "ipc:///tmp/a b", "port": 7, "ratio": 0.25, "key": ("x", "y")}
    arguments, environment = as_flags(OPTIONS, values), as_environment(OPTIONS, values)
    assert not any("key" in argument for argument in arguments)
    assert given_values(OPTIONS, parse(*arguments), environment, {}) == values


def test_value_that_looks_like_a_flag_survives_the_way_to_a_child() -> None:
    arguments = as_flags(OPTIONS, {"address": "--port"})
    assert given_values(OPTIONS, parse(*arguments), {}, {}) == {"address": "--port"}


def test_secret_with_a_comma_cannot_travel_and_says_so() -> None:
    with pytest.raises(OptionError, match="--key"):
        as_environment(OPTIONS, {"key": ("a,b",)})


def test_help_shows_default_variable_and_percent_sign(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "60 % of all ports [default: 8000; SHOAL_PORT]" in text
    assert "where [required; SHOAL_ADDRESS]" in text
    assert "--form json|text" in text


@pytest.mark.parametrize("text", ["", " ", ",", "x,,y"])
def test_an_empty_secret_is_an_error_for_it_would_switch_the_check_off(text: str) -> None:
    given = {"SHOAL_ADDRESS": "a"}
    with pytest.raises(OptionError, match="SHOAL_KEY: must not be empty"):
        given_values(OPTIONS, NOT_GIVEN, {**given, "SHOAL_KEY": text}, {})
    if "," not in text:
        with pytest.raises(OptionError, match="--key: must not be empty"):
            given_values(OPTIONS, parse("--key", text), given, {})
        with pytest.raises(OptionError, match="key 'key': must not be empty"):
            given_values(OPTIONS, NOT_GIVEN, given, {"key": [text]})


def test_spaces_around_the_commas_of_a_variable_do_not_count() -> None:
    environment = {"SHOAL_ADDRESS": "a", "SHOAL_KEY": "x, y"}
    assert given_values(OPTIONS, NOT_GIVEN, environment, {})["key"] == ("x", "y")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--port", "x"], "--port: must be a whole number from 0 to 65535 (got x)"),
        (["--port", "65536"], "--port: must be a whole number from 0 to 65535 (got 65536)"),
        (["--ratio", "0"], "--ratio: must be a number above 0 (got 0)"),
        (["--form", "xml"], "--form: must be one of json, text (got xml)"),
    ],
)
def test_errors_say_what_is_wanted_in_words(arguments: list[str], complaint: str) -> None:
    with pytest.raises(OptionError) as failure:
        given_values(OPTIONS, parse("--address", "a", *arguments), {}, {})
    assert str(failure.value) == complaint


def test_a_switch_is_shown_with_its_two_values_as_they_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "--prefix-caching true|false keep" in shown
    assert "[default: true; SHOAL_PREFIX_CACHING]" in shown
