"""Each process gets the options that are its own, and nothing that it should not have."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.launch import Launch, ProcessSpec, hub_name
from deploy.run_directory import RunDirectory
from deploy.supervised_process import Role

VALUES: dict[str, Any] = {
    "port": 9000,
    "max_num_seqs": 7,
    "max_requests": 11,
    "api_key": ("k1", "k2"),
    "drain_timeout_s": 4.0,
}


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[RunDirectory]:
    directory = RunDirectory(tmp_path / "run")
    yield directory
    directory.remove()


def specs(directory: RunDirectory, environment: dict[str, str] | None = None) -> list[tuple[Role, ProcessSpec]]:
    return Launch("sim:", 2, 3, VALUES).specs(directory, 42, environment or {})


def flags(spec: ProcessSpec) -> set[str]:
    return {argument for argument in spec.command if argument.startswith("--")}


def test_coordinator_comes_first_and_names_are_unique(directory: RunDirectory) -> None:
    roles = [role for role, _ in specs(directory)]
    assert roles == [Role.COORDINATOR, *[Role.ENGINE_CORE] * 2, *[Role.API_SERVER] * 3]
    assert len({spec.name for _, spec in specs(directory)}) == 6


def test_options_go_to_the_roles_that_have_them(directory: RunDirectory) -> None:
    for role, spec in specs(directory):
        assert ("--max-num-seqs=7" in flags(spec)) == (role is Role.ENGINE_CORE)
        assert ("--max-requests=11" in flags(spec)) == (role is Role.COORDINATOR)
        assert ("--drain-timeout-s=4.0" in flags(spec)) == (role is not Role.COORDINATOR)
        assert "--port=9000" not in flags(spec)


def test_only_api_servers_get_the_listening_socket_and_the_keys(directory: RunDirectory) -> None:
    for role, spec in specs(directory):
        is_api_server = role is Role.API_SERVER
        assert spec.inherited_fds == ((42,) if is_api_server else ())
        assert ("--fd=42" in flags(spec)) == is_api_server
        assert spec.environment.get("SHOAL_API_KEY") == ("k1,k2" if is_api_server else None)
        assert not any("k1" in argument for argument in spec.command)


def test_options_of_the_supervisor_do_not_leak_to_children_by_environment(directory: RunDirectory) -> None:
    environment = {"SHOAL_NAME": "x", "SHOAL_PORT": "1", "SHOAL_CACHE_DIR": "/c", "PATH": "/bin"}
    for _, spec in specs(directory, environment):
        assert "SHOAL_NAME" not in spec.environment
        assert "SHOAL_PORT" not in spec.environment
        assert (spec.environment["SHOAL_CACHE_DIR"], spec.environment["PATH"]) == ("/c", "/bin")


def test_blas_threads_of_the_user_are_kept(directory: RunDirectory) -> None:
    for role, spec in specs(directory, {"OPENBLAS_NUM_THREADS": "13"}):
        if role is Role.ENGINE_CORE:
            assert spec.environment["OPENBLAS_NUM_THREADS"] == "13"
    assert all(
        int(spec.environment["OPENBLAS_NUM_THREADS"]) >= 1
        for role, spec in specs(directory)
        if role is Role.ENGINE_CORE
    )


def test_engine_cores_share_the_memory(directory: RunDirectory, tmp_path: Path) -> None:
    def memory_flags(engines: int, values: dict[str, Any]) -> list[str]:
        (_, (_, spec), *_) = Launch(str(tmp_path), engines, 1, values).specs(directory, 42, {})
        return sorted(flag for flag in flags(spec) if "memory" in flag)

    assert memory_flags(1, {}) == []
    assert memory_flags(4, {}) == ["--memory-share=0.25"]
    assert memory_flags(2, {"kv_cache_memory_bytes": 99}) == ["--kv-cache-memory-bytes=99", "--memory-share=0.5"]


def test_a_model_of_the_hub_is_called_by_its_id_and_a_folder_by_its_name(tmp_path: Path) -> None:
    commit = tmp_path / "models--owner--name" / "snapshots" / "0123abc"
    commit.mkdir(parents=True)
    assert hub_name("owner/name", commit) == "owner/name"
    assert hub_name(str(commit), commit) is None, "given as a folder"
    assert hub_name("demo", tmp_path / "demo-2-float32" / "SmolLM2-135M-Instruct") is None
