#!/usr/bin/env bash
# Builds the wheel and the sdist of the Python package into a folder, with what requirements.txt pins. Their version is
# CONCERTINA_VERSION, that of the operator. Nothing is asked of the network when the cache has what builds them.
#
#     hack/package/build.sh FOLDER
set -euo pipefail
out=$(realpath -m "${1:?usage: hack/package/build.sh FOLDER}")
cd "$(dirname "$0")/../.."

cache=$(realpath -m "${CONCERTINA_CACHE:-.cache}")
home=$cache/tools/setuptools
made_of=$({ cat hack/package/requirements.txt hack/package/build.sh; python3 --version; } | sha256sum | cut -d' ' -f1)

if [ "$(cat "$home/made-of" 2>/dev/null)" != "$made_of" ]; then
	python3 -m pip --version >/dev/null || { echo "package: python3 has no pip, with which setuptools is installed" >&2; exit 1; }
	mkdir -p "$cache/tools"
	new=$(mktemp -d "$cache/tools/setuptools.XXXXXX")
	trap 'rm -rf --one-file-system "$new"' EXIT
	python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-cache-dir --no-deps --target "$new" \
		--only-binary :all: --require-hashes -r hack/package/requirements.txt >&2
	echo "$made_of" >"$new/made-of"
	rm -rf --one-file-system "$home"
	mv "$new" "$home"
fi

# Of a copy: what a build leaves behind would be taken for a part of the package by the next one.
copy=$(mktemp -d)
trap 'rm -rf --one-file-system "$copy" ${new:+"$new"}' EXIT
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
