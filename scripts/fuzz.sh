#!/bin/sh
# Runs each fuzz target of the module, one after the other: fuzz.sh TIME
set -eu
cd "$(dirname "$0")/.."
time=${1:-10s}
grep -rE --include='*_test.go' --exclude-dir='.*' '^func Fuzz[A-Za-z0-9_]*\(' . | sort |
	sed -E 's|^(.*)/[^/]*_test\.go:func (Fuzz[A-Za-z0-9_]*)\(.*|\1 \2|' |
	while read -r package target; do
		echo "== $package $target"
		"${GO:-go}" test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$package" </dev/null
	done
