#!/usr/bin/env bash
# Installs OpenBLAS where MLX's CPU build needs it (Linux): without it the demo is about 70 times slower.
# Needs root or sudo without a password; otherwise it says what to run. Never fails: serving works without it.
set -euo pipefail

python="$(dirname "$0")/../.venv/bin/python"

if [[ "$(uname -s)" != Linux ]] || "$python" -m deploy.machine > /dev/null; then
  exit 0
fi

if command -v apt-get > /dev/null; then
  install='apt-get install -y --no-install-recommends libopenblas0-pthread'
  refresh='apt-get update -q'
elif command -v dnf > /dev/null; then
  install='dnf install -y openblas-threads'
elif command -v pacman > /dev/null; then
  install='pacman -S --noconfirm openblas'
else
  echo 'shoal: install OpenBLAS with your package manager; without it the CPU is about 70 times slower' >&2
  exit 0
fi

if [[ "$(id -u)" == 0 ]]; then
  prefix=''
elif sudo -n true 2> /dev/null; then
  prefix='sudo -n'
else
  echo "shoal: OpenBLAS is missing, without it the CPU is about 70 times slower. Run: sudo $install" >&2
  exit 0
fi

echo "shoal: installing OpenBLAS: $install" >&2
# shellcheck disable=SC2086
if ! { $prefix $install > /dev/null 2>&1 || { [[ -n "${refresh:-}" ]] && $prefix $refresh > /dev/null && $prefix $install > /dev/null; }; }; then
  echo "shoal: that failed; serving works without OpenBLAS, but slowly. Run: sudo $install" >&2
fi
