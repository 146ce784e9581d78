"""The commands of docs/several-machines.md, as they stand there, each on its machine.

But for the model, which is a simulated one: two loads of the demo model take a minute on a busy machine of two cores.
"""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from namespaces import Namespace, Switch, inside

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "several-machines.md"
ADDRESSES = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


class Block(msgspec.Struct, frozen=True):
    """A code block, with the words behind its `sh`: machines, and `serve` for what does not end by itself."""

    machines: list[str]
    is_serve: bool
    text: str


def blocks() -> list[Block]:
    page = PAGE.read_text().replace("serve demo", "serve sim:").replace("SmolLM2-135M-Instruct", "sim")
    found = re.findall(r"^```sh ([a-z ]+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [Block(words.replace("serve", "").split(), "serve" in words, text) for words, text in found]


class Terminals:
    """One on each machine, in a directory of its own where `.venv` is."""

    def __init__(self, namespaces: list[Namespace], directory: Path) -> None:
        self._namespaces = {namespace.name[-1]: namespace for namespace in namespaces}
        self._directory = directory
        self._keys: dict[str, str] = {}
        self._running: list[subprocess.Popen[str]] = []
        for letter in self._namespaces:
            (directory / letter).mkdir()
            (directory / letter / ".venv").symlink_to(ROOT / ".venv")

    def run(self, block: Block) -> str:
        """What the commands print, or nothing while they go on."""
        printed = ""
        for letter in block.machines:
            text = re.sub(r"KEY-OF-([A-C])", lambda match: self._keys[match.group(1).lower()], block.text)
            with inside(self._namespaces[letter]):
                process = subprocess.Popen(
                    ["bash", "-ec", f"exec {text}" if block.is_serve else text],
                    cwd=self._directory / letter,
                    env={**os.environ, "HF_HUB_OFFLINE": "1"},
                    stdout=subprocess.PIPE,
                    text=True,
                )
            if block.is_serve:
                self._running.append(process)
                continue
            printed, _ = process.communicate(timeout=60)
            assert process.returncode == 0, block.text
            if "keys make" in block.text:
                self._keys[letter] = printed.strip()
        return printed

    def stop(self) -> list[int]:
        """Ends what goes on, the last first; exit codes."""
        for process in reversed(self._running):
            process.send_signal(signal.SIGTERM)
        return [process.wait(60) for process in self._running]


@pytest.fixture
def terminals(switch: Switch, tmp_path: Path) -> Iterator[Terminals]:
    switch.bridge()
    assert [namespace.address for namespace in switch.machines] == ADDRESSES
    terminals = Terminals(switch.machines, tmp_path)
    yield terminals
    terminals.stop()


def test_the_pages_commands_make_a_cluster_that_answers(terminals: Terminals) -> None:
    *preparation, question = blocks()
    assert [block.is_serve for block in preparation] == [False, False, True, True, True]
    for block in preparation:
        terminals.run(block)
    deadline_s = time.monotonic() + 90
    while True:
        try:
            answer = json.loads(terminals.run(question))
        except AssertionError:  # curl: nobody listens yet
            answer = {}
        if "choices" in answer or time.monotonic() > deadline_s:
            break
        time.sleep(1)
    assert answer["choices"][0]["text"].strip()
    assert answer["usage"]["completion_tokens"] == 5
    assert terminals.stop() == [0, 0, 0]
