"""What KV depends on beside the tokens: names the model for whom KV is kept longer than the process lives.

Two models with equal fingerprints must compute the same KV, so everything is in it that may change: the configuration,
the weights, the form of the KV, the versions of what computes it. The weights are too large to be read whole at each
start: of each tensor two samples are, beside the files' sizes and times of change.
"""

import hashlib
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec

from engine_core.block_file import FORMAT_VERSION
from engine_core.device import BlockPart

SAMPLE_BYTES = 4_096
"""From the beginning and from the middle of each tensor: other weights of the same form differ everywhere, and one
tensor changed alone is noticed too."""
_FINGERPRINT_HEX = 32
_COMPUTED_BY = ("mlx", "mlx-lm")


class _Tensor(msgspec.Struct, frozen=True):
    data_offsets: tuple[int, int]


def model_fingerprint(folder: Path, parts: Sequence[BlockPart]) -> str:
    """Of the model in a folder whose blocks have these parts, 32 hexadecimal digits. Raises OSError."""
    digest = hashlib.sha256(f"shoal KV {FORMAT_VERSION} {list(parts)}\n".encode())
    for package in _COMPUTED_BY:
        digest.update(f"{package} {version(package)}\n".encode())
    digest.update((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        status = path.stat()
        digest.update(f"\n{path.name} {status.st_size} {status.st_mtime_ns}\n".encode())
        for sample in _samples(path):
            digest.update(sample)
    return digest.hexdigest()[:_FINGERPRINT_HEX]


def _samples(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length)
        yield header
        entries = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        for entry in entries.values():
            start, end = msgspec.json.decode(entry, type=_Tensor).data_offsets
            for offset in (start, (start + end) // 2):
                file.seek(8 + length + offset)
                yield file.read(min(SAMPLE_BYTES, end - offset))
