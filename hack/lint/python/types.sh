#!/usr/bin/env bash
# Checks the types of the Python package with mypy, of the version and with the hashes that requirements.txt pins.
set -euo pipefail
cd "$(dirname "$0")/../../.."

home=$(hack/tools/pip.sh mypy hack/lint/python/requirements.txt)
cache=$(realpath -m "${CONCERTINA_CACHE:-.cache}")
cd python
PYTHONPATH=$home exec python3 -m mypy --no-error-summary --cache-dir "$cache/mypy"
