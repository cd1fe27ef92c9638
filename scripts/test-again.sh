#!/bin/sh
# test-again.sh CMD... -- PACKAGE...: runs the tests of the packages with CMD ("go test ..."). Tests that fail are run once more, without
# the others, and have failed if they fail again: many of them wait for other processes, and the machine may be busy for a moment with
# something else. The tests that were run again are printed at the end.
#
# A test is run again once in its life: the file scripts/reran-tests lists those that were, one line "PACKAGE TEST DATE" for each. A person
# adds the printed line with the next commit, and removes it when the cause is repaired. A test in the list that fails has failed. The
# same is true for a test about kills, crashes, power cuts, takeovers or models, whose first failure is the finding.
set -uf # -f: do not expand patterns in the words of CMD
reran=${AFS_RERAN_TESTS:-scripts/reran-tests}
finding='Outlive|Kill|Crash|Power|Cut|TakeOver|Takeover|Model|Torture|Successor|Died|Death'
log=$(mktemp)
list=$(mktemp)
again=$(mktemp)
trap 'rm -f "$log" "$list" "$again"' EXIT
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
	for test in $(echo "$failed" | tr '|' ' '); do
		if echo "$test" | grep -qE "$finding"; then
			echo "not run again, because one failure of such a test is a finding: $package $test"
			status=1
		elif grep -qs "^$package $test " "$reran"; then
			echo "not run again, because $reran lists it: $(grep "^$package $test " "$reran")"
			status=1
		fi
	done
done <"$list"
[ $status = 0 ] || exit 1
while read -r package failed; do
	for test in $(echo "$failed" | tr '|' ' '); do
		echo "$package $test $(date +%F)" >>"$again"
	done
	echo "failed, run once more: $package $failed"
	$cmd -run "^($failed)\$" "$package" </dev/null && echo "passed the second time: $package $failed" || status=1
done <"$list"
echo "tests that were run again; add these lines to $reran:"
cat "$again"
exit $status
