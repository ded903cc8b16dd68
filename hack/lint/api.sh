#!/usr/bin/env bash
# Runs kube-api-linter over api/, with the rules of .golangci-kal.yml. It has no releases, so a
# commit is pinned; the checksum database of Go vouches for its content.
set -euo pipefail
cd "$(dirname "$0")/../.."

version=v0.0.0-20260505132823-17b403fcc907
dir=${CONCERTINA_CACHE:-$PWD/.cache}/tools/kube-api-linter-$version
linter=$dir/golangci-lint-kube-api-linter
if [ ! -x "$linter" ]; then
	GOBIN=$dir go install "sigs.k8s.io/kube-api-linter/cmd/golangci-lint-kube-api-linter@$version"
fi
exec "$linter" run --config .golangci-kal.yml ./api/...
