#!/usr/bin/env bash
# Makes the Python environment in which the SDK meets the frameworks: CONCERTINA_CACHE/frameworks, of what
# requirements.txt pins. Nothing is asked of the network when it is there and made of the same file.
#
# FRAMEWORKS_PYTHON names the Python to make it with: 3.12 or 3.13, for which all of the packages have wheels.
set -euo pipefail
cd "$(dirname "$0")/../.."

home=${CONCERTINA_CACHE:-.cache}/frameworks
made_of=$(cat hack/frameworks/requirements.txt hack/frameworks/install.sh | sha256sum | cut -d' ' -f1)

python() {
	local candidate candidates=(python3.12 python3.13 python3 "$HOME"/.pyenv/versions/3.1[23].*/bin/python)
	if [ -n "${FRAMEWORKS_PYTHON:-}" ]; then candidates=("$FRAMEWORKS_PYTHON"); fi
	for candidate in "${candidates[@]}"; do
		if "$candidate" -c 'import sys, venv; sys.exit(not (3, 12) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
			echo "$candidate"
			return
		fi
	done
	echo "deps-frameworks: no Python 3.12 or 3.13 with venv was found: install one, or name it with FRAMEWORKS_PYTHON" >&2
	return 1
}

if [ "$(cat "$home/made-of" 2>/dev/null)" != "$made_of" ]; then
	rm -rf --one-file-system "$home"
	base=$(python)
	command -v g++ >/dev/null || { echo "deps-frameworks: g++ is missing, with which DeepSpeed is built" >&2; exit 1; }
	echo "deps-frameworks: $("$base" --version), 2.7 GB to download and 5 GB on disk: about five minutes" >&2
	"$base" -m venv "$home"
	pip=("$home/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-deps)
	# DeepSpeed is published as source alone. What builds it is pinned as well. Of its kernels the one that it wants on
	# processors is compiled here: otherwise every rank would wait for the first to compile it.
	"${pip[@]}" --require-hashes --only-binary :all: -r <(awk '/^[a-z]/ {wanted = !/^deepspeed==/} wanted' hack/frameworks/requirements.txt)
	DS_BUILD_OPS=0 DS_BUILD_SHM_COMM=1 "${pip[@]}" --require-hashes --no-build-isolation -r <(awk '/^[a-z]/ {wanted = /^deepspeed==/} wanted' hack/frameworks/requirements.txt)
	# The SDK as it stands in this checkout, with its entry point for torchrun.
	"${pip[@]}" --no-build-isolation --editable python
	echo "$made_of" >"$home/made-of"
fi
echo "$home"
