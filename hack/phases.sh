#!/usr/bin/env bash
# Runs make targets one after the other and says when each began, how long it took, and which ones
# failed:
#
#     hack/phases.sh lint test-unit
#
# A target that fails keeps no other from running: one run tells all that is wrong. The exit status is
# that of the first one that failed.
set -uo pipefail

start=$SECONDS
code=0
failed=0
why=()
summary=()
# What a phase prints goes to NAME.out as well, and what tells why it failed is printed once more at the end: the few lines
# that it leaves in NAME.why, or else those of its output that look like it.
results=${CONCERTINA_CACHE:-$PWD/.cache}/results
mkdir -p "$results"
why_of() {
	[ -s "$results/$1.why" ] && return
	{
		grep -E -A 12 '^ *--- FAIL|^=== FAIL|^panic: |^WARNING: DATA RACE|^(FAIL|ERROR): |^[^ ]+:[0-9]+:[0-9]+: ' "$results/$1.out" ||
			tail -n 15 "$results/$1.out"
	} | head -n 60 | cut -c -300 >"$results/$1.why"
}
clock() { printf '%d:%02d' $((SECONDS / 60)) $((SECONDS % 60)); }
# Who interrupts wants none of the others either.
trap 'exit 130' INT

for phase in "$@"; do
	began=$SECONDS
	echo "==> $(clock) $phase"
	rm -f "$results/$phase.why"
	make "$phase" 2>&1 | tee "$results/$phase.out"
	status=${PIPESTATUS[0]}
	summary+=("$(printf '%-18s %4d s' "$phase" $((SECONDS - began)))")
	if [ $status -ne 0 ]; then
		summary[-1]+=" FAILED"
		failed=$((failed + 1))
		if [ $code -eq 0 ]; then code=$status; fi
		why_of "$phase"
		why+=("$results/$phase.why")
	fi
done
echo "==> $(clock) end"
printf '    %s\n' "${summary[@]}" "$(printf '%-18s %4d s' total $((SECONDS - start)))"
if [ ${#why[@]} -gt 0 ]; then head -n 60 "${why[@]}"; fi
if [ $failed -gt 0 ]; then echo "    $failed of $# failed"; fi
exit $code
