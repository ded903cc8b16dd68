#!/usr/bin/env bash
# Installs torchft, of the version and with the hashes that hack/frameworks/requirements.txt pins, for the Python of the
# PyTorch image: into a folder of the cache whose name it prints. PyTorch is the image's. Nothing is asked of the network
# when it is there and made of the same files.
#
#     hack/bench/peers/install.sh 3.13
set -euo pipefail
cd "$(dirname "$0")/../../.."

version=$1
home=$(realpath -m "${CONCERTINA_CACHE:-.cache}/bench/torchft")
made_of=$({ cat hack/frameworks/requirements.txt hack/bench/peers/install.sh; echo "$version"; } | sha256sum | cut -d' ' -f1)

if [ "$(cat "$home/made-of" 2>/dev/null)" != "$made_of" ]; then
	python3 -m pip --version >/dev/null || { echo "bench-peers: python3 has no pip, with which torchft is installed" >&2; exit 1; }
	rm -rf --one-file-system "$home"
	python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-cache-dir --no-deps --target "$home" \
		--python-version "$version" --implementation cp --only-binary :all: --require-hashes \
		-r <(awk '/^[a-z]/ {wanted = /^(torchft|opentelemetry-[a-z-]+|googleapis-common-protos|protobuf)==/} wanted' hack/frameworks/requirements.txt) >&2
	echo "$made_of" >"$home/made-of"
fi
echo "$home"
