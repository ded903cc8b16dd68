#!/usr/bin/env bash
# Builds the wheel and the sdist of the Python package into a folder, with what requirements.txt pins. Their version is
# CONCERTINA_VERSION, that of the operator. Nothing is asked of the network when the cache has what builds them.
#
#     hack/package/build.sh FOLDER
set -euo pipefail
out=$(realpath -m "${1:?usage: hack/package/build.sh FOLDER}")
cd "$(dirname "$0")/../.."

home=$(hack/tools/pip.sh setuptools hack/package/requirements.txt)

# Of a copy: what a build leaves behind would be taken for a part of the package by the next one.
copy=$(mktemp -d)
trap 'rm -rf --one-file-system "$copy"' EXIT
mkdir -p "$copy/concertina" "$out"
cp python/pyproject.toml python/setup.py python/README.md "$copy"
cp python/concertina/*.py python/concertina/py.typed "$copy/concertina"
cd "$copy"
PYTHONPATH=$home python3 - "$out" <<'PY'
import contextlib, sys
from setuptools import build_meta

out = sys.argv[1]  # It sets the arguments.
with contextlib.redirect_stdout(None):
    built = [build(out) for build in (build_meta.build_wheel, build_meta.build_sdist)]
for name in built:
    print(f"{out}/{name}")
PY
