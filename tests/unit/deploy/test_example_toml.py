"""The example file names every option of `shoal serve`, and its values are the defaults."""

import re
import tomllib
from pathlib import Path
from typing import Any

import deploy.config
from deploy.config import all_serve_options
from deploy.options import given_values

EXAMPLE = Path(deploy.config.__file__).with_name("shoal.example.toml")
NO_FLAGS: dict[str, Any] = {}


def test_as_it_is_the_file_changes_nothing() -> None:
    assert tomllib.loads(EXAMPLE.read_text()) == {}


def test_every_option_is_there_with_its_default() -> None:
    switched_on = tomllib.loads(re.sub(r"^#(?=\w+ = )", "", EXAMPLE.read_text(), flags=re.MULTILINE))
    options = all_serve_options()
    assert list(switched_on) == [option.name for option in options]
    values = given_values(options, NO_FLAGS, {}, switched_on)
    for option in options:
        assert option.default in (None, (), values[option.name]), option.name
