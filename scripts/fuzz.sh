#!/bin/sh
# Runs each fuzz target of the module, one after the other, and stops at the first that finds something: fuzz.sh TIME
set -eu
cd "$(dirname "$0")/.."
targets=$(grep -rE --include='*_test.go' --exclude-dir='.[!.]*' '^func Fuzz[A-Za-z0-9_]*\(' . | sort |
	sed -E 's|^(.*)/[^/]*_test\.go:func (Fuzz[A-Za-z0-9_]*)\(.*|\1 \2|')
[ -n "$targets" ] || { echo "fuzz: there is no target" >&2; exit 1; }
echo "$targets" | while read -r package target; do
	echo "== $package $target"
	"${GO:-go}" test -run '^$' -fuzz "^$target\$" -fuzztime "${1:-10s}" "$package" </dev/null
done
