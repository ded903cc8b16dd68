#!/usr/bin/env bash
# Installs Python packages into a folder of the cache, of the versions and with the hashes that a file pins, and prints the folder.
# Nothing is asked of the network when it is there and was made of the same file.
#
#     hack/tools/pip.sh NAME REQUIREMENTS
set -euo pipefail

name=${1:?usage: hack/tools/pip.sh NAME REQUIREMENTS}
pins=$(realpath "${2:?usage: hack/tools/pip.sh NAME REQUIREMENTS}")
root=$(cd "$(dirname "$0")/../.." && pwd)
tools=$(realpath -m "${CONCERTINA_CACHE:-$root/.cache}")/tools
home=$tools/$name
made_of=$({ cat "$pins" "$root/hack/tools/pip.sh"; python3 --version; } | sha256sum | cut -d' ' -f1)

if [ "$(cat "$home/made-of" 2>/dev/null)" != "$made_of" ]; then
	python3 -m pip --version >/dev/null || { echo "python3 has no pip, with which $name is installed: run 'make deps'" >&2; exit 1; }
	mkdir -p "$tools"
	new=$(mktemp -d "$tools/$name.XXXXXX")
	trap 'rm -rf --one-file-system "$new"' EXIT
	python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-cache-dir --no-deps --target "$new" \
		--only-binary :all: --require-hashes -r "$pins" >&2
	echo "$made_of" >"$new/made-of"
	rm -rf --one-file-system "$home"
	mv "$new" "$home"
fi
echo "$home"
