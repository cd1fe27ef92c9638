#!/bin/sh
# test-again.sh CMD... PACKAGE: runs the tests of PACKAGE with CMD ("go test ..."). Tests that fail are run once more, without the
# others, and have failed if they fail again. Tests of whole mounts judge time, and the machine may be busy for a moment with
# something else. What failed at first is printed at the end.
set -u
log=$(mktemp)
trap 'rm -f "$log"' EXIT
{ "$@" 2>&1; echo "exit status $?"; } | tee "$log" | grep -v '^exit status [0-9]*$'
grep -q '^exit status 0$' "$log" && exit 0
failed=$(sed -n 's/^--- FAIL: \(Test[A-Za-z0-9_]*\) .*/\1/p' "$log" | sort -u | paste -sd '|' -)
# A panic, a time-out or a failed build names no test, or not all of them; many failures are no accident.
if [ -z "$failed" ] || grep -qE '^(panic:|FAIL.*\[build failed\])' "$log" || [ "$(echo "$failed" | tr '|' '\n' | wc -l)" -gt 5 ]; then
	exit 1
fi
for package; do :; done
echo "failed, run once more: $failed"
n=$#
while [ "$n" -gt 1 ]; do # the same command, with -run before the package
	set -- "$@" "$1"
	shift
	n=$((n - 1))
done
shift
"$@" -run "^($failed)\$" "$package" || exit 1
echo "passed the second time: $failed"
