#!/bin/sh
# Runs git's own tests in a plain directory, and those scripts that pass there in a mount:
#
#	git-suite.sh GITSRC [PATTERN...]
#
# GITSRC is git's source, outside of this checkout; it is built there if it is not yet. PATTERNs choose scripts of its
# t/, such as 't1*' or t3301-notes.sh; all of t0, t1, t2, t3, t6 and t7 without. A script that fails in the mount runs
# once more in both places, verbosely. The table is SCRIPT, result and seconds in the plain directory, result and seconds
# in the mount, results being passed, failed, late, partly for what passes after skipping more tests than in the plain
# directory, and unsteady for what passes the second time; exits with 1 if anything failed, was late or passed partly in
# the mount alone.
#
#	JOBS=2 LATE=900 LOGS=DIR KEEP=1 AFS=PROGRAM   scripts at once, seconds for each, where output is kept, leave the
#	mount, artifactfs if it is not bin/artifactfs
set -eu

# One script, run by xargs below: places and times come by the environment.
if [ "${1:-}" = --one ]; then
	script=$2
	# run PLACE LOG [FLAG...]: sets result and took.
	run() {
		place=$1 log=$2
		shift 2
		start=$(date +%s)
		status=0
		(cd "$SUITE_SRC/t" && TEST_OUTPUT_DIRECTORY="$SUITE_TMP/out-$script" exec setsid timeout -k 10 "$LATE" \
			sh "./$script" --no-color --root="$place" "$@") >"$log" 2>&1 </dev/null || status=$?
		took=$(($(date +%s) - start))
		case $status in
		0) result=passed ;;
		124 | 137) result=late ;;
		*) result=failed ;;
		esac
	}
	skipped() { grep -c '# [sS][kK][iI][pP]' "$1" || true; }
	run "$SUITE_PLAIN" "$LOGS/$script.plain"
	plain="$result $took" mount="- -"
	if [ "$result" = passed ]; then
		run "$SUITE_MOUNT" "$LOGS/$script.mount"
		if [ "$result" = passed ] && [ "$(skipped "$LOGS/$script.plain")" != "$(skipped "$LOGS/$script.mount")" ]; then result=partly; fi
		mount="$result $took"
		if [ "$result" = failed ] || [ "$result" = late ]; then
			run "$SUITE_PLAIN" "$LOGS/$script.plain-again" -v
			again=$result
			run "$SUITE_MOUNT" "$LOGS/$script.mount-again" -v -x
			if [ "$result" = passed ] || [ "$again" != passed ]; then mount="unsteady ${mount#* }"; fi
		fi
	fi
	rm -rf "$SUITE_TMP/out-$script"
	printf '%s %s %s\n' "$script" "$plain" "$mount"
	exit 0
fi

[ $# -ge 1 ] || { echo "usage: $0 GITSRC [PATTERN...]" >&2; exit 2; }
SUITE_SRC=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
self=$PWD/scripts/git-suite.sh
afs=${AFS:-$PWD/bin/artifactfs}
[ -x "$afs" ] || { echo "$0: $afs is missing (make build)" >&2; exit 1; }
[ $# -gt 0 ] || set -- 't[012367][0-9][0-9][0-9]*'
[ -x "$SUITE_SRC/t/helper/test-tool" ] || make -C "$SUITE_SRC" -j2 NO_TCLTK=1 >/dev/null

# Both places have short names of the same length: tests that need a socket in theirs skip what they cannot name.
SUITE_TMP=$(mktemp -d "${TMPDIR:-/tmp}/suite.XXXXXX")
SUITE_PLAIN=$SUITE_TMP/dir/t SUITE_MOUNT=$SUITE_TMP/mnt/t
LOGS=${LOGS:-$SUITE_TMP/logs} LATE=${LATE:-900}
export SUITE_SRC SUITE_TMP SUITE_PLAIN SUITE_MOUNT LOGS LATE
export ARTIFACTFS_STATE="$SUITE_TMP/state"
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE

cleanup() {
	status=$?
	trap - EXIT
	if [ -n "${KEEP:-}" ]; then
		echo "kept in $SUITE_TMP" >&2
		exit $status
	fi
	"$afs" unmount --discard --yes "$SUITE_TMP/mnt" >/dev/null 2>&1 || true
	"$afs" unmount --all >/dev/null 2>&1 || true
	if grep -qF " $SUITE_TMP/mnt fuse" /proc/self/mounts; then umount -l "$SUITE_TMP/mnt" 2>/dev/null || fusermount3 -uz "$SUITE_TMP/mnt" || true; fi
	# The daemon may still be throwing away what is left.
	rm -rf --one-file-system "$SUITE_TMP" 2>/dev/null || { sleep 2 && rm -rf --one-file-system "$SUITE_TMP"; }
	exit $status
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# What is mounted does not matter: the tests make repositories of their own in it.
mkdir -p "$SUITE_PLAIN" "$LOGS"
git init -q "$SUITE_TMP/source"
git -C "$SUITE_TMP/source" -c user.name=suite -c user.email=suite@example.invalid commit -q --allow-empty -m empty
"$afs" mount "$SUITE_TMP/source" "$SUITE_TMP/mnt" >/dev/null
mkdir "$SUITE_MOUNT"

# shellcheck disable=SC2086 # patterns on purpose
(cd "$SUITE_SRC/t" && ls $*) | grep '^t[0-9][0-9][0-9][0-9]-.*\.sh$' |
	xargs -P "${JOBS:-2}" -n 1 "$self" --one | tee "$LOGS/results"
awk '{ plain[$2]++; mount[$4]++; p += $3; if ($4 != "-") { q += $5; r += $3 } }
	END { printf "%d scripts: %d pass in the plain directory; of them in the mount %d pass, %d partly, %d fail, %d are late, %d unsteady; %d s and %d s\n",
		NR, plain["passed"], mount["passed"], mount["partly"], mount["failed"], mount["late"], mount["unsteady"], r, q
		exit mount["failed"] + mount["late"] + mount["partly"] > 0 }' "$LOGS/results"
