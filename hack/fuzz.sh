#!/usr/bin/env bash
# Runs every fuzz target of the module, one after another, each for FUZZTIME (2m), or, when FUZZ_CPU_MINUTES is given, for
# so many minutes of all processors together. What fails is written into the testdata/fuzz of its package: commit it with
# the mend, so that every test run tries it again.
set -euo pipefail
cd "$(dirname "$0")/.."

workers=$(nproc)
if [[ -n "${FUZZ_CPU_MINUTES:-}" ]]; then
	FUZZTIME=$(((FUZZ_CPU_MINUTES * 60 + workers - 1) / workers))s
fi
targets=0
for file in $(grep -rlE '^func Fuzz' --include='*_test.go' cmd internal pkg | sort); do
	package=./$(dirname "$file")
	for target in $(sed -nE 's/^func (Fuzz[A-Za-z0-9_]*)\(.*/\1/p' "$file"); do
		echo "fuzz $package $target"
		${GO:-go} test "$package" -run '^$' -fuzz "^$target\$" -parallel "$workers" -fuzztime "${FUZZTIME:-2m}"
		targets=$((targets + 1))
	done
done
if [ "$targets" -eq 0 ]; then
	echo "fuzz: no target was found" >&2
	exit 1
fi
