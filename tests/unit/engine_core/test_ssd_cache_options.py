"""Which model's blocks a folder's files are, and options that cannot be followed."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from block_samples import DATA_BYTES, PARTS

from engine_core.config import EngineCoreConfig
from engine_core.device import ModelRefused
from engine_core.model_fingerprint import model_fingerprint
from engine_core.ssd_cache import open_ssd_cache
from engine_core.ssd_thread import SsdThread


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"rope_theta": 1}')
    for name in ("a", "b"):
        mx.save_safetensors(str(folder / f"{name}.safetensors"), {"w": mx.zeros((100, 1_000)), "b": mx.zeros(1)})
    return folder


def opened(model: Path, **options: object) -> SsdThread | None:
    config = EngineCoreConfig(engines_address="ipc:///unused", model=str(model), **options)  # type: ignore[arg-type]
    return open_ssd_cache(config, PARTS, lambda _event: None)


def test_the_same_model_has_the_same_fingerprint_wherever_it_is(model: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(model, tmp_path / "copy")
    fingerprint = model_fingerprint(model, PARTS)
    assert fingerprint == model_fingerprint(copy, PARTS)
    assert len(fingerprint) == 32 and int(fingerprint, 16) > 0


def changed_weight(model: Path, offset: int) -> None:
    path = model / "b.safetensors"
    status, content = path.stat(), bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        lambda model: (model / "config.json").write_text('{"rope_theta": 2}'),
        lambda model: changed_weight(model, -400_000),
        lambda model: changed_weight(model, -200_000),
        lambda model: os.utime(model / "a.safetensors"),
        lambda model: (model / "a.safetensors").rename(model / "c.safetensors"),
        lambda model: (model / "b.safetensors").unlink(),
    ],
    ids=["configuration", "beginning of a tensor", "middle of a tensor", "time", "name", "one less"],
)
def test_another_model_has_another_fingerprint(model: Path, change: Callable[[Path], object]) -> None:
    before = model_fingerprint(model, PARTS)
    change(model)
    assert model_fingerprint(model, PARTS) != before


def test_another_form_of_kv_has_another_fingerprint(model: Path) -> None:
    assert model_fingerprint(model, PARTS) != model_fingerprint(model, PARTS[:1])


def test_without_a_folder_nothing_is_kept(model: Path) -> None:
    assert opened(model) is None


def test_a_folder_is_made_for_its_owner_alone(model: Path, tmp_path: Path) -> None:
    assert opened(model, ssd_cache_dir=str(tmp_path / "new" / "cache")) is not None
    assert (tmp_path / "new" / "cache").stat().st_mode & 0o777 == 0o700


def test_options_that_cannot_be_followed_are_refused(model: Path, tmp_path: Path) -> None:
    folder = str(tmp_path / "cache")
    with pytest.raises(ModelRefused, match="needs prefix_caching"):
        opened(model, ssd_cache_dir=folder, prefix_caching=False)
    with pytest.raises(ModelRefused, match=f"less than one block of this model: {DATA_BYTES}"):
        opened(model, ssd_cache_dir=folder, ssd_cache_bytes=100)
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelRefused, match="file"):
        opened(model, ssd_cache_dir=str(tmp_path / "file"))


def test_a_model_whose_blocks_cannot_be_stored_is_served_without(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = EngineCoreConfig(engines_address="x", model=str(model), ssd_cache_dir=str(tmp_path / "cache"))
    assert open_ssd_cache(config, (), lambda _event: None) is None
    assert "of no use" in caplog.text
