#!/usr/bin/env bash
# Checks formal/worlds.pml with spin: every configuration must hold, and with any one of the rules
# that have a macro removed a violation must be found, or the model would prove nothing.
#
#     hack/verify-model.sh          small bounds: 1 to 3 minutes, 2 GiB of memory
#     hack/verify-model.sh --all    larger ones too: 15 to 25 minutes, at most 3 GiB for each of two searches at a time
set -euo pipefail
cd "$(dirname "$0")/.."

case "$*" in
"" | --all) ;;
*) echo "usage: hack/verify-model.sh [--all]" >&2; exit 2 ;;
esac
for program in spin gcc; do
	command -v $program >/dev/null || { echo "verify-model: $program is missing: run 'make deps'" >&2; exit 1; }
done
model=$PWD/formal/worlds.pml
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# bounds STEPS ROUNDS TERMS CRASHES LOSSES ALARMS CHANGES LIFTS [RESUMES [UNCLEAR [LATES]]]
bounds() {
	echo "-DSTEPS=$1 -DROUNDS=$2 -DTERMS=$3 -DCRASHES=$4 -DLOSSES=$5 -DALARMS=$6 -DCHANGES=$7 -DLIFTS=$8 -DRESUMES=${9:-0} -DUNCLEAR=${10:-0} -DLATES=${11:-0}"
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
resumed="-DOPERATORS=1 $(bounds 3 3 3 0 0 0 1 0 2)"
joined="-DOPERATORS=1 -DGROWTH $(bounds 3 3 3 0 0 0 1 0 1)"
eased="-DOPERATORS=1 $(bounds 2 2 3 1 0 0 1 0 1)"
late="-DOPERATORS=1 $(bounds 2 2 2 1 0 0 1 0 0 0 1)"
later="-DOPERATORS=1 $(bounds 2 3 2 1 0 0 1 0 0 0 1)"
newcomer="-DOPERATORS=1 -DGROWTH $(bounds 2 3 2 1 0 0 1 0 0 0 1)"
stranger="-DOPERATORS=1 -DGROWTH $(bounds 2 3 2 1 1 0 1 0 0 0 1)"
survivor="-DOPERATORS=1 $(bounds 2 2 2 1 1 0 0 0 0 0 1)"
halfway="-DOPERATORS=1 $(bounds 2 3 2 1 0 0 1 0)"
loosened="-DOPERATORS=1 $(bounds 2 3 3 1 0 0 1 0 1)"
bereft="-DOPERATORS=1 $(bounds 2 3 1 0 1 1 1 0)"
unclear="-DOPERATORS=1 $(bounds 2 2 2 1 0 0 1 0 0 1)"
forgotten="-DOPERATORS=1 $(bounds 2 3 2 1 0 0 1 0 0 1)"
unknown="-DOPERATORS=1 $(bounds 2 3 1 0 0 1 1 0 0 1)"
again="-DOPERATORS=1 $(bounds 2 3 2 1 1 0 1 0)"
crowd="-DWORKERS=3 -DOPERATORS=2 $(bounds 1 1 2 0 0 0 0 0)"
foreseen="-DOPERATORS=2 -DOPEN_ENDED $(bounds 1 3 2 0 0 0 1 0)"
three="-DWORKERS=3 -DOPERATORS=1 $(bounds 2 2 1 0 1 0 1 0)"

# search NAME ARGUMENTS: 0 when all was searched and nothing found, 1 when a violation was found, 2 when
# there is no verdict. What -O2 saves in the searching it costs, and more, in the compiling.
search() {
	local work=$dir/$1 log=$dir/$1/log
	shift
	mkdir -p "$work"
	if ! (cd "$work" && spin -a "$@" "$model" && gcc -O1 -w -DSAFETY -DHC4 -DMEMLIM=3072 -o pan pan.c &&
		./pan -m10000 -n) >"$log" 2>&1; then
		return 2
	fi
	if grep -q "errors: 1$" "$log" && grep -q "^pan:1: assertion violated" "$log"; then
		return 1
	fi
	grep -q "errors: 0$" "$log" && ! grep -qE "max search depth|Search not completed" "$log" || return 2
}

holds() {
	local began=$SECONDS code=0
	search "$1" ${!1} || code=$?
	if [ $code -ne 0 ]; then
		echo "verify-model: $1 does not hold, or the search did not end:" >&2
		tail -n 40 "$dir/$1/log" >&2
		touch "$dir/failed"
		return 0
	fi
	printf '%-12s holds, %10d states, %3d s\n' "$1" \
		"$(awk '/states, stored/ {print $1}' "$dir/$1/log")" $((SECONDS - began))
	echo "$1" >>"$dir/done"
}

# fails RULE CONFIGURATION: without the rule there must be a violation. The configuration itself holds.
fails() {
	local began=$SECONDS code=0
	search "$1" "-DWITHOUT_$1" ${!2} || code=$?
	if [ $code -ne 1 ]; then
		echo "verify-model: no violation is found with $1 removed ($2):" >&2
		tail -n 40 "$dir/$1/log" >&2
		touch "$dir/failed"
		return 0
	fi
	printf '%-12s is needed, violated in %s, %3d s\n' "$1" "$2" $((SECONDS - began))
	echo "$1" >>"$dir/done"
}

# beside CHECK ARGUMENTS: two at a time, as one takes a single processor.
begun=0
beside() {
	while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n || true; done
	begun=$((begun + 1))
	[ -e "$dir/failed" ] || "$@" &
}

for name in barrier growth loss silence chase longer successor rivals resumed joined eased late newcomer survivor halfway bereft unclear unknown; do beside holds $name; done
beside fails COMPARE rivals
beside fails TERMS rivals
beside fails SHUT_OUT rivals
beside fails FENCE silence
beside fails ATTEMPTS barrier
beside fails STOP_ALONE chase
beside fails PARKED resumed
beside fails LIVE joined
beside fails BOTH joined
beside fails USED_UP unknown
beside fails NAMED survivor
beside fails WORD newcomer
if [ "${1:-}" = --all ]; then
	for name in loosened later stranger handover crossing again forgotten three crowd twice foreseen; do beside holds $name; done
	beside fails OWN_TERM twice
	beside fails MAY_NEVER foreseen
fi
wait
ended=$(cat "$dir/done" 2>/dev/null | wc -l)
if [ ! -e "$dir/failed" ] && [ "$ended" -ne $begun ]; then
	echo "verify-model: of $begun checks only $ended have come to an end: others could not run, or were killed" >&2
	exit 1
fi
[ ! -e "$dir/failed" ]
