#!/usr/bin/env bash
# Checks the types of the Python package with mypy, of the version and with the hashes that requirements.txt pins: in a folder of
# the cache. Nothing is asked of the network when it is there and made of the same files.
set -euo pipefail
cd "$(dirname "$0")/../../.."

cache=$(realpath -m "${CONCERTINA_CACHE:-.cache}")
home=$cache/tools/mypy
made_of=$({ cat hack/lint/python/requirements.txt hack/lint/python/types.sh; python3 --version; } | sha256sum | cut -d' ' -f1)

if [ "$(cat "$home/made-of" 2>/dev/null)" != "$made_of" ]; then
	python3 -m pip --version >/dev/null || { echo "lint: python3 has no pip, with which mypy is installed" >&2; exit 1; }
	mkdir -p "$cache/tools"
	new=$(mktemp -d "$cache/tools/mypy.XXXXXX")
	trap 'rm -rf --one-file-system "$new"' EXIT
	python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-cache-dir --no-deps --target "$new" \
		--only-binary :all: --require-hashes -r hack/lint/python/requirements.txt >&2
	echo "$made_of" >"$new/made-of"
	rm -rf --one-file-system "$home"
	mv "$new" "$home"
fi
cd python
PYTHONPATH=$home exec python3 -m mypy --no-error-summary --cache-dir "$cache/mypy"
