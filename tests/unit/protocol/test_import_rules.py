"""Which package may import which: from the sources, and at run time."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = {"protocol", "api_server", "coordinator", "engine_core", "deploy", "benchmarks"}
ALLOWED = {
    "protocol": set(),
    "api_server": {"protocol"},
    "coordinator": {"protocol"},
    "engine_core": {"protocol"},
    "benchmarks": {"protocol", "engine_core"},
}
HEAVY = {"mlx", "mlx_lm", "torch", "transformers"}


def imported_packages(source: Path) -> set[str]:
    """The top-level names that a source file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source}: relative import"
            names.add((node.module or "").partition(".")[0])
    return names


def sources(package: str) -> list[Path]:
    found = sorted((ROOT / package).rglob("*.py"))
    assert found, package
    return found


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_packages_import_only_what_they_may(package: str) -> None:
    for source in sources(package):
        others = (imported_packages(source) & PACKAGES) - {package} - ALLOWED[package]
        assert not others, f"{source} imports {others}"


def test_only_the_bench_of_the_engine_core_imports_it() -> None:
    """It measures in process, what HTTP and sockets would hide; `bench serve` must run where no model library is."""
    for source in sources("benchmarks"):
        if not source.name.startswith("engine_") and source.name != "cli.py":
            assert not imported_packages(source) & {"engine_core", *HEAVY}, source


@pytest.mark.parametrize("package", ["protocol", "coordinator", "api_server"])
def test_no_source_outside_the_engine_core_imports_a_model_library(package: str) -> None:
    for source in sources(package):
        assert not imported_packages(source) & HEAVY, source


@pytest.mark.parametrize("package", ["coordinator", "api_server"])
def test_no_model_library_is_loaded_with_the_whole_package(package: str) -> None:
    modules = [".".join(source.relative_to(ROOT).with_suffix("").parts) for source in sources(package)]
    program = (
        "import importlib, sys\n"
        f"for module in {modules!r}: importlib.import_module(module)\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_nothing_imports_pickle(package: str) -> None:
    for source in sources(package):
        assert not imported_packages(source) & {"pickle", "cloudpickle", "dill", "marshal", "shelve"}, source
