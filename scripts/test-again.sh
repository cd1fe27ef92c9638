#!/bin/sh
# test-again.sh CMD... -- PACKAGE...: runs the tests of the packages with CMD ("go test ..."). Tests that fail are run once more, without
# the others, and have failed if they fail again: many of them wait for other processes, and the machine may be busy for a moment with
# something else. The tests that failed at first are printed at the end.
set -uf # -f: do not expand patterns in the words of CMD
log=$(mktemp)
list=$(mktemp)
trap 'rm -f "$log" "$list"' EXIT
cmd=
while [ "$1" != -- ]; do # no argument of go test contains a space
	cmd="$cmd $1"
	shift
done
shift
{ $cmd "$@" 2>&1; echo "exit status $?"; } | tee "$log" | grep -v '^exit status [0-9]*$'
grep -q '^exit status 0$' "$log" && exit 0
# The list has a line "PACKAGE Test1|Test2" for each package that failed. A panic, a time-out or a failed build names no test, or not
# all of them; many failures are no accident.
awk '
	/^--- FAIL: Test/ { tests = tests (tests == "" ? "" : "|") $3; n++ }
	/^(panic:|fatal error:)/ { other = 1 }
	/^FAIL\t/ { if (other || tests == "" || /\[(build|setup) failed\]/) exit (bad = 1); print $2, tests }
	/^(ok|FAIL|\?)[ \t]/ { tests = "" }
	END { exit bad || n == 0 || n > 5 }' "$log" >"$list" || exit 1
status=0
while read -r package failed; do
	echo "failed, run once more: $package $failed"
	$cmd -run "^($failed)\$" "$package" </dev/null && echo "passed the second time: $package $failed" || status=1
done <"$list"
exit $status
