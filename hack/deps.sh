#!/usr/bin/env bash
# Installs the Debian packages that the local cluster, the images and the tests need, as far as
# they are missing. Nothing is asked of the network when none is.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
for package in $(cat hack/deps.txt hack/cluster/deps.txt); do
	status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
	if [ "$status" != installed ]; then missing+=("$package"); fi
done
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi

if [ "$(id -u)" -ne 0 ]; then
	echo "deps: missing: ${missing[*]}" >&2
	echo "deps: install them as root: apt-get install ${missing[*]}" >&2
	exit 1
fi
echo "deps: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -q </dev/null
apt-get install -q -y --no-install-recommends "${missing[@]}" </dev/null
