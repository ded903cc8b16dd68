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
# Where a phase leaves a few lines, NAME.why, about why it failed: they are told once more at the end.
results=${CONCERTINA_CACHE:-$PWD/.cache}/results
clock() { printf '%d:%02d' $((SECONDS / 60)) $((SECONDS % 60)); }
# Who interrupts wants none of the others either.
trap 'exit 130' INT

for phase in "$@"; do
	began=$SECONDS
	echo "==> $(clock) $phase"
	rm -f "$results/$phase.why"
	make "$phase"
	status=$?
	summary+=("$(printf '%-18s %4d s' "$phase" $((SECONDS - began)))")
	if [ $status -ne 0 ]; then
		summary[-1]+=" FAILED"
		failed=$((failed + 1))
		if [ $code -eq 0 ]; then code=$status; fi
		if [ -s "$results/$phase.why" ]; then why+=("$results/$phase.why"); fi
	fi
done
echo "==> $(clock) end"
printf '    %s\n' "${summary[@]}" "$(printf '%-18s %4d s' total $((SECONDS - start)))"
if [ ${#why[@]} -gt 0 ]; then head -n 30 "${why[@]}"; fi
if [ $failed -gt 0 ]; then echo "    $failed of $# failed"; fi
exit $code
