#!/usr/bin/env bash
# Builds the commands that a module pins with `tool` lines into .cache/tools.
#
#     hack/tools/build.sh MODULE_DIR
#
# The stamp holds what decides the result: the module's pins and the Go version. A tool is built
# again only when that changes, whatever the files' times say.
set -euo pipefail

module=${1:?usage: hack/tools/build.sh MODULE_DIR}
root=$(cd "$(dirname "$0")/../.." && pwd)
out=${CONCERTINA_CACHE:-$root/.cache}/tools
name=$(basename "$module")
stamp=$out/.stamp-$name

want=$(cd "$root/$module" && { cat go.mod go.sum; go env GOVERSION GOOS GOARCH; } | sha256sum)
mapfile -t tools < <(cd "$root/$module" && go list -f '{{.ImportPath}}' tool)

fresh() {
	[ "$(cat "$stamp" 2>/dev/null)" = "$want" ] || return 1
	local tool
	for tool in "${tools[@]}"; do [ -x "$out/${tool##*/}" ] || return 1; done
}
fresh && exit 0

mkdir -p "$out"
for tool in "${tools[@]}"; do
	echo "building ${tool##*/} from $module/go.mod" >&2
	(cd "$root/$module" && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$out/${tool##*/}" "$tool")
done
echo "$want" >"$stamp"
