#!/usr/bin/env bash
# Runs make targets one after the other and says when each began, how long it took, and which one
# failed:
#
#     hack/phases.sh lint test-unit
set -uo pipefail

start=$SECONDS
code=0
summary=()
clock() { printf '%d:%02d' $((SECONDS / 60)) $((SECONDS % 60)); }

for phase in "$@"; do
	began=$SECONDS
	echo "==> $(clock) $phase"
	make "$phase"
	code=$?
	summary+=("$(printf '%-18s %4d s' "$phase" $((SECONDS - began)))")
	if [ $code -ne 0 ]; then
		summary[-1]+=" FAILED"
		break
	fi
done
echo "==> $(clock) end"
printf '    %s\n' "${summary[@]}" "$(printf '%-18s %4d s' total $((SECONDS - start)))"
exit $code
