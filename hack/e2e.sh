#!/usr/bin/env bash
# Runs the end-to-end tests with a label (short, long or frameworks) against the cluster that E2E_CLUSTER names:
#
#     local      hack/cluster: started here when it does not run, and then ended again
#     kind       a kind cluster, the same way; needs Docker and kind
#     existing   whatever KUBECONFIG leads to, with the images already there
#
#     hack/e2e.sh LABEL [FLAGS OF GINKGO...]
set -euo pipefail
cd "$(dirname "$0")/.."

label=${1:?usage: hack/e2e.sh LABEL [FLAGS OF GINKGO...]}
shift
cache=${CONCERTINA_CACHE:-$PWD/.cache}
results=$cache/results
export E2E_CLUSTER=${E2E_CLUSTER:-local}
mkdir -p "$results" "$cache/tools"

case $E2E_CLUSTER in
local)
	go build -o "$cache/tools/cluster" ./hack/cluster
	"$cache/tools/cluster" build >/dev/null
	go run ./hack/images build
	if ! "$cache/tools/cluster" status >/dev/null 2>&1; then
		trap '"$cache/tools/cluster" down' EXIT
	fi
	# A cluster that runs already is left as it is.
	KUBECONFIG=$("$cache/tools/cluster" up)
	export KUBECONFIG
	"$cache/tools/cluster" image load "$cache"/images/*.tar
	if [ "$label" = frameworks ]; then
		go run ./hack/images build frameworks
		"$cache/tools/cluster" image load "$cache/images/apart/frameworks.tar"
	fi
	;;
kind)
	go run ./hack/images build
	go run ./hack/cluster build coscheduling-scheduler helm kubectl
	if ! kind get clusters 2>/dev/null | grep -qx concertina; then
		trap 'kind delete cluster --name concertina' EXIT
	fi
	hack/kind/up.sh
	export KUBECONFIG=$cache/kind.kubeconfig
	;;
existing)
	go run ./hack/cluster build helm kubectl >/dev/null
	;;
*)
	echo "e2e: E2E_CLUSTER is $E2E_CLUSTER: it can be local, kind or existing" >&2
	exit 1
	;;
esac

timeout=40m
if [ "$label" = long ]; then timeout=4h; fi
# Two at a time: the tests wait more than they compute. Those that need the cluster for themselves say so.
go build -o "$cache/tools/ginkgo" github.com/onsi/ginkgo/v2/ginkgo
status=0
"$cache/tools/ginkgo" run --procs=2 --label-filter="$label" --timeout="$timeout" --no-color -v "$@" ./test/e2e 2>&1 |
	tee "$results/e2e-$label.log" || status=$?
if [ $status -ne 0 ]; then
	# What failed, what had happened to its jobs by their events, and what was done last, without the timelines between.
	{
		grep -v '^  \[FAILED\] in ' "$results/e2e-$label.log" | grep -A 10 '^  \[FAILED\] '
		grep -E '^ *[0-9]{2}(:[0-9]{2}){2} (Normal|Warning) [A-Za-z]+ TrainingJob/' "$results/e2e-$label.log" | tail -n 30
		grep 'STEP:' "$results/e2e-$label.log" | tail -n 4
	} | cut -c -300 >"$results/test-e2e.why" || true
fi
exit $status
