#!/usr/bin/env bash
# Installs xgrammar, the back end for structured output, on Linux: without what its package depends on. That is torch,
# on x86-64 a CUDA build of several gigabytes, of which nothing is used (engine_core/xgrammar_library.py); the small
# rest is in the extra `grammar`. On macOS, where torch is small, that extra has xgrammar itself.
# Never fails: everything else works without.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ "$(uname -s)" != Linux ]]; then
  exit 0
fi

requirement="$(sed -n 's/^ *"\(xgrammar[^;"]*\).*/\1/p' pyproject.toml | tr -d ' ')"
if ! .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps "$requirement"; then
  echo "shoal: structured output needs xgrammar. Run: .venv/bin/pip install --no-deps '$requirement'" >&2
fi
