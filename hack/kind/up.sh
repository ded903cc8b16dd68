#!/usr/bin/env bash
# Starts the kind cluster of the end-to-end tests, unless it runs: three workers with four pretended
# devices each, a scheduler with coscheduling, and the images of this checkout. It needs Docker and
# kind, and `go run ./hack/cluster build` and `go run ./hack/images build` before.
#
# Unverified: it was written on machines without Docker.
set -euo pipefail
cd "$(dirname "$0")/../.."

cache=${CONCERTINA_CACHE:-$PWD/.cache}
export KUBECONFIG=$cache/kind.kubeconfig
name=concertina
kubectl=$cache/bin/kubectl

if ! kind get clusters 2>/dev/null | grep -qx "$name"; then
	kind create cluster --name "$name" --config hack/kind/cluster.yaml --wait 3m
fi
kind export kubeconfig --name "$name"

for node in $("$kubectl" get nodes -l '!node-role.kubernetes.io/control-plane' -o name); do
	"$kubectl" patch "$node" --subresource=status --type=json -p '[
		{"op": "add", "path": "/status/capacity/example.com~1gpu", "value": "4"},
		{"op": "add", "path": "/status/allocatable/example.com~1gpu", "value": "4"}]'
done

build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
cp "$cache/bin/coscheduling-scheduler" "$build"
printf 'FROM scratch\nCOPY coscheduling-scheduler /\n' >"$build/Dockerfile"
docker build -q -t localhost/coscheduling-scheduler:dev "$build"
kind load docker-image --name "$name" localhost/coscheduling-scheduler:dev
for image in "$cache"/images/*.tar; do
	kind load image-archive --name "$name" "$image"
done

"$kubectl" apply --server-side -f "$cache/bin/podgroups.yaml"
"$kubectl" apply --server-side -f hack/kind/scheduler.yaml
"$kubectl" --namespace kube-system rollout status deployment/coscheduling --timeout 2m
