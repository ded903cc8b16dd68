#!/usr/bin/env bash
# Generates all that is generated: deepcopy functions, apply configurations, the CRD, the
# operator's roles, their copies in the Helm chart, the reference of the API, and the RPC code.
#
#     hack/generate/generate.sh           writes the results into the checkout
#     hack/generate/generate.sh --check   writes nothing, fails when they are stale
#
# The generators run in a copy of the tree. So nobody who builds meanwhile sees half of it, a
# file whose source is gone disappears, and the check needs no clean git state.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
export PATH=${CONCERTINA_CACHE:-$root/.cache}/tools:$PATH
mode=write
if [ "${1:-}" = --check ]; then mode=check; fi

# What is generated: folders that hold nothing else, and single files.
outputs=(
	api/v1alpha1/applyconfiguration
	api/v1alpha1/zz_generated.deepcopy.go
	charts/concertina/generated
	config/crd/bases
	config/rbac/role.yaml
	docs/api.md
	internal/rendezvous/rendezvousv1
)
# What the generators read.
inputs=(go.mod go.sum api internal cmd proto buf.yaml buf.gen.yaml)

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cd "$root"
for path in "${inputs[@]}"; do
	if [ -e "$path" ]; then cp -r --parents "$path" "$copy"; fi
done

cd "$copy"
rm -rf "${outputs[@]}"
# The operator's packages import the API and the RPC code, so those come first.
controller-gen object applyconfiguration paths=./api/...
buf generate
controller-gen crd:generateEmbeddedObjectMeta=true paths=./api/... output:crd:dir=config/crd/bases
controller-gen rbac:roleName=concertina-operator paths=./internal/... paths=./cmd/... output:rbac:dir=config/rbac
(cd "$root" && go run ./hack/generate/manifests "$copy")

stale=()
for path in "${outputs[@]}"; do
	if [ ! -e "$root/$path" ] && [ ! -e "$copy/$path" ]; then continue; fi
	if ! diff -rq "$root/$path" "$copy/$path" >/dev/null 2>&1; then stale+=("$path"); fi
done

if [ "$mode" = check ]; then
	if [ ${#stale[@]} -eq 0 ]; then exit 0; fi
	for path in "${stale[@]}"; do
		diff -ruN "$root/$path" "$copy/$path" | sed -e "s|$root/|a/|g" -e "s|$copy/|b/|g" | head -n 80 || true
	done
	echo "verify: stale: ${stale[*]}" >&2
	echo "verify: run 'make generate' and commit the result" >&2
	exit 1
fi
for path in "${stale[@]}"; do
	echo "generated $path"
	mkdir -p "$root/$(dirname "$path")"
	rm -rf "${root:?}/$path"
	if [ -e "$copy/$path" ]; then cp -r "$copy/$path" "$root/$path"; fi
done
