#!/bin/sh
# Runs each fuzz target of the module, one after the other, and stops at the first that finds something: fuzz.sh TIME
#
# On a busy machine, go test at times reports its own deadline as a failure of a target: the end of the time reaches the loop that
# watches over the workers before it reaches the context with which the loop compares it (https://go.dev/issue/75804). Such a
# report names no input and no worker that has ended. It is printed, and is no finding.
set -eu
cd "$(dirname "$0")/.."
targets=$(grep -rE --include='*_test.go' --exclude-dir='.[!.]*' '^func Fuzz[A-Za-z0-9_]*\(' . | sort |
	sed -E 's|^(.*)/[^/]*_test\.go:func (Fuzz[A-Za-z0-9_]*)\(.*|\1 \2|')
[ -n "$targets" ] || { echo "fuzz: there is no target" >&2; exit 1; }
report=$(mktemp)
trap 'rm -f "$report"' EXIT

# deadline reports whether the last run has failed by its deadline only.
deadline() {
	awk '/^--- FAIL/ { failed = 1; next }
		/^    context deadline exceeded$/ { ours++; next }
		failed && !/^(FAIL|exit status 1$)/ { other = 1 }
		/^panic:|Failing input/ { other = 1 }
		END { exit !(ours == 1 && !other) }' "$report"
}

echo "$targets" | while read -r package target; do
	echo "== $package $target"
	status=0
	"${GO:-go}" test -run '^$' -fuzz "^$target\$" -fuzztime "${1:-10s}" "$package" </dev/null >"$report" 2>&1 || status=$?
	cat "$report"
	[ "$status" = 0 ] || { deadline && echo "fuzz: nothing was found before the deadline"; } || exit "$status"
done
