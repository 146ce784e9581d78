import argparse

import pytest

from benchmarks.cli import add_bench_parser, run_bench


def bench(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_bench_parser(parser.add_subparsers())
    return run_bench(parser.parse_args(["bench", "engine", *arguments]), find_model)


def find_model(model: str) -> str:
    raise ValueError(f"no model {model!r}")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--model=mine"], "no model 'mine'"),
        (["--steps=1"], "--steps: must be a whole number of at least 2"),
        (["--only=decode,nothing"], "--only"),
        (["--json=/no/such/folder/report"], "/no/such/folder/report cannot be written"),
    ],
)
def test_what_cannot_be_measured_is_said_at_once(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(*arguments) == 2
    assert complaint in capsys.readouterr().err


def test_the_model_may_be_a_folder_that_holds_none(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_bench_parser(parser.add_subparsers())
    assert run_bench(parser.parse_args(["bench", "engine", f"--model={tmp_path}"])) == 2
    assert "shoal bench: " in capsys.readouterr().err
