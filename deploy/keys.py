"""`shoal keys`: makes a machine's key pair, shows the public keys of those that are there."""

import sys
from collections.abc import Sequence
from pathlib import Path

from protocol.curve import load_key_pair, new_key_pair, save_secret_key
from protocol.errors import BadKey

EXIT_FAILURE = 1


def make_keys(path: Path) -> int:
    """Writes a new secret key (a file of mode 0600, never one that is there), prints the public one; the exit code."""
    try:
        pair = new_key_pair()
        save_secret_key(pair, path)
    except BadKey as error:
        print(f"shoal keys make: {error}", file=sys.stderr)
        return EXIT_FAILURE
    print(pair.public)
    return 0


def show_public_keys(paths: Sequence[Path]) -> int:
    """Prints the public key of each secret key file, with the file's name when there are several; the exit code."""
    try:
        keys = [load_key_pair(path).public for path in paths]
    except BadKey as error:
        print(f"shoal keys public: {error}", file=sys.stderr)
        return EXIT_FAILURE
    for path, key in zip(paths, keys, strict=True):
        print(key if len(paths) == 1 else f"{key} {path}")
    return 0
