import argparse

import pytest

from benchmarks.config import ServeBenchConfig
from benchmarks.options import add_options, read_options


def parse(*arguments: str) -> ServeBenchConfig:
    parser = argparse.ArgumentParser()
    add_options(parser, ServeBenchConfig)
    return read_options(parser.parse_args(arguments), ServeBenchConfig)


def test_without_flags_the_defaults_hold() -> None:
    assert parse() == ServeBenchConfig()


def test_flags_of_all_kinds_are_read() -> None:
    given = ("--concurrency", "1,8", "--no-stream", "--arrivals", "constant", "--duration-s", "2.5", "--json", "f")
    expected = ServeBenchConfig(concurrency=(1, 8), stream=False, arrivals="constant", duration_s=2.5, json="f")
    assert parse(*given) == expected


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (["--requests", "0"], "--requests: "),
        (["--requests", "x"], "--requests: "),
        (["--concurrency", "1,0"], "--concurrency: "),
        (["--arrivals", "never"], r"--arrivals: must be one of constant, poisson \(got never\)"),
        (["--timeout-s", "-1"], r"--timeout-s: must be a number above 0 \(got -1\)"),
        (["--concurrency", "1,x"], r"--concurrency: must be a list, each a whole number of at least 1 \(got 1,x\)"),
        (["--concurrency", "2", "--rate", "2"], "--concurrency"),
        (["--prompt-tokens", "5", "--shared-prefix-tokens", "5"], "--shared-prefix-tokens"),
        (["--min-tokens", "5", "--max-tokens", "4"], "--min-tokens"),
        (["--compare-model", "m"], "--compare"),
        (["--no-stream", "--slo-ttft-ms", "5"], "--no-stream"),
    ],
)
def test_a_bad_value_is_refused_and_its_flag_named(arguments: list[str], flag: str) -> None:
    with pytest.raises(ValueError, match=flag):
        parse(*arguments)


def test_help_gives_description_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "--prompt-tokens N length of the synthetic prompts (default: 128)" in shown
    assert "--stream, --no-stream" in shown
