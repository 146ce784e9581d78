"""From what a user calls a model to a folder on disk. Runs in the `pull` process, which may load MLX."""

import re
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

from deploy.demo_model import ensure_demo_model, suitable_weights

DEMO = "demo"
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
"""Not ./x, ../x or /x, which are paths."""
_WANTED_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.tiktoken", "*.txt"]


class ModelError(Exception):
    """The model cannot be had; the message says what to do."""


def pull(model: str, cache: Path) -> Path:
    """The folder of `model`: `demo`, a local folder, or a hub id, fetched when it is not there.

    Raises ModelError or DemoModelError.
    """
    if model == DEMO:
        return ensure_demo_model(cache, suitable_weights())
    folder = Path(model).expanduser()
    if folder.is_dir():
        return _checked(folder.absolute())
    if not _HUB_ID.fullmatch(model):
        raise ModelError(
            f"no model folder {model!r}; a hub id would look like owner/name, the built-in one is {DEMO!r}"
            + (f" ({folder.absolute()} is a file)" if folder.is_file() else "")
        )
    return _checked(_from_hub(model))


def _from_hub(model: str) -> Path:
    try:
        return Path(huggingface_hub.snapshot_download(model, allow_patterns=_WANTED_FILES))
    except RepositoryNotFoundError as error:
        raise ModelError(f"the hub has no model {model!r}, or it needs a token (HF_TOKEN)") from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"{model!r} is not in the local cache and the hub cannot be reached: "
            "check the connection, or copy the model here and give its folder"
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelError(f"{model!r} could not be fetched: {error}") from error


def _checked(folder: Path) -> Path:
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    if not any(folder.glob("model*.safetensors")):
        missing.append("model*.safetensors")
    if missing:
        raise ModelError(f"{folder} is not an MLX model folder: it lacks {', '.join(missing)}")
    return folder


def local_models(cache: Path) -> list[tuple[str, Path, int]]:
    """Models that need no download: (what to call it, folder, bytes)."""
    found = [(DEMO, folder, _size_bytes(folder)) for folder in sorted(cache.glob("models/demo-*/*"))]
    try:
        repos = huggingface_hub.scan_cache_dir().repos
    except huggingface_hub.errors.CacheNotFound:
        return found
    for repo in sorted(repos, key=lambda repo: repo.repo_id):
        for revision in repo.revisions:
            if any(revision.snapshot_path.glob("model*.safetensors")):
                found.append((repo.repo_id, revision.snapshot_path, revision.size_on_disk))
    return found


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())
