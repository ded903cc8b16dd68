#!/usr/bin/env bash
# Checks formal/worlds.pml with spin: every configuration must hold, and with any one of its rules
# removed a violation must be found, or the model would prove nothing.
#
#     hack/verify-model.sh          small bounds
#     hack/verify-model.sh --all    larger ones too, some minutes and 1 GiB of memory each
set -euo pipefail
cd "$(dirname "$0")/.."

for program in spin gcc; do
	command -v $program >/dev/null || { echo "verify-model: $program is missing: run 'make deps'" >&2; exit 1; }
done
model=$PWD/formal/worlds.pml
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# bounds STEPS ROUNDS TERMS CRASHES LOSSES ALARMS CHANGES LIFTS
bounds() {
	echo "-DSTEPS=$1 -DROUNDS=$2 -DTERMS=$3 -DCRASHES=$4 -DLOSSES=$5 -DALARMS=$6 -DCHANGES=$7 -DLIFTS=$8"
}
barrier="-DOPERATORS=1 $(bounds 2 2 1 0 0 0 2 1)"
growth="-DOPERATORS=1 -DGROWTH $(bounds 2 3 1 0 0 0 1 0)"
loss="-DOPERATORS=1 $(bounds 2 2 1 0 1 0 1 0)"
successor="-DOPERATORS=1 $(bounds 2 2 2 1 0 1 0 0)"
silence="-DOPERATORS=1 $(bounds 2 2 1 0 0 1 1 0)"
rivals="-DOPERATORS=2 $(bounds 1 2 2 0 0 0 0 0)"
handover="-DOPERATORS=2 $(bounds 2 2 2 0 0 0 1 0)"
twice="-DOPERATORS=2 $(bounds 2 2 2 0 0 0 2 0)"
crossing="-DOPERATORS=2 $(bounds 2 2 2 0 0 1 0 0)"
chase="-DOPERATORS=1 $(bounds 4 2 1 0 0 0 1 0)"
longer="-DOPERATORS=1 $(bounds 3 2 1 0 0 0 2 1)"
again="-DOPERATORS=1 $(bounds 2 3 2 1 1 0 1 0)"
three="-DWORKERS=3 -DOPERATORS=1 $(bounds 2 2 1 0 1 0 1 0)"

# search NAME ARGUMENTS: prints what spin found, and fails if that was a violation.
search() {
	local work=$dir/$1
	shift
	mkdir -p "$work"
	(
		cd "$work"
		spin -a "$@" "$model" >spin.log || { cat spin.log >&2; exit 2; }
		gcc -O2 -w -DSAFETY -DHC4 -DMEMLIM=3072 -o pan pan.c
		./pan -m10000 -n >pan.log
		if grep -qE "error: max search depth|Search not completed" pan.log && ! grep -q "errors: 1" pan.log; then
			cat pan.log >&2
			exit 2
		fi
		grep -q "errors: 0" pan.log
	)
}

holds() {
	local began=$SECONDS code=0
	search "$1" ${!1} || code=$?
	if [ $code -ne 0 ]; then
		echo "verify-model: $1: violated" >&2
		grep -E "^pan|errors:" "$dir/$1/pan.log" >&2
		exit 1
	fi
	printf '%-12s holds, %10d states, %3d s\n' "$1" \
		"$(awk '/states, stored/ {print $1}' "$dir/$1/pan.log")" $((SECONDS - began))
}

# fails RULE CONFIGURATION: without the rule there must be a violation.
fails() {
	local began=$SECONDS code=0
	search "$1" "-DWITHOUT_$1" ${!2} || code=$?
	if [ $code -ne 1 ]; then
		echo "verify-model: nothing is found with $1 removed ($2)" >&2
		exit 1
	fi
	printf '%-18s is needed: without it %s, %d s\n' "$1" \
		"$(sed -n 's/^pan:1: \(.\{0,60\}\).*/\1/p' "$dir/$1/pan.log")" $((SECONDS - began))
}

for name in barrier growth loss silence successor rivals; do holds $name; done
fails COMPARE rivals
fails FENCE silence
fails ATTEMPTS barrier
fails STOP_ALONE chase
fails SHUT_OUT rivals
if [ "${1:-}" = --all ]; then
	fails OWN_TERM twice
	for name in handover crossing chase longer again three; do holds $name; done
fi
