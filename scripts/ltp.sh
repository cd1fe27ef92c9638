#!/bin/sh
# Runs those system call tests of the Linux Test Project that concern file systems in a plain directory, and those that pass
# there in a mount:
#
#	ltp.sh LTPSRC [PATTERN...]
#
# LTPSRC is LTP's source, outside of this checkout; what is needed of it is built there if it is not yet (autoconf,
# automake, m4). PATTERNs choose tests, such as 'link*' or statx01; all in the directories below without. Tests that make file
# systems of their own on a device say nothing about ours and are left out. A test that fails in the mount runs once more (sendfile09 writes 10 GB). The
# table is TEST, result in the plain directory, result in the mount, results being passed, failed, late, partly for what passes
# and leaves more out than in the plain directory, and expected for what scripts/ltp-expected lists; exits with 1 if anything
# else failed, was late or passed partly in the mount alone, or if what is listed as expected passes.
#
#	LATE=300 LOGS=DIR AFS=PROGRAM   seconds for each, where output is kept, artifactfs if it is not bin/artifactfs
#
# Root only, as the tests are.
set -eu

dirs='access chdir chmod chown close copy_file_range creat dup fallocate fchmod fchmodat fchmodat2 fchown fchownat fcntl
	fdatasync fgetxattr flistxattr flock fremovexattr fsetxattr fstat fstatat fstatfs fsync ftruncate futimesat getcwd
	getdents getxattr inotify lchown link linkat listxattr llistxattr llseek lremovexattr lseek lstat madvise mincore mkdir
	mkdirat mknod mknodat mmap mprotect mremap msync munmap name_to_handle_at open open_by_handle_at openat openat2
	pread preadv preadv2 pwrite pwritev pwritev2 read readahead readdir readlink readlinkat readv removexattr
	rename renameat renameat2 rmdir sendfile setxattr splice stat statfs statvfs statx symlink symlinkat sync
	sync_file_range syncfs tee truncate umask unlink unlinkat utime utimensat utimes vmsplice write writev'

[ $# -ge 1 ] || { echo "usage: $0 LTPSRC [PATTERN...]" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "$0: root only" >&2; exit 2; }
SRC=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
expected=$PWD/scripts/ltp-expected
afs=${AFS:-$PWD/bin/artifactfs}
[ -x "$afs" ] || { echo "$0: $afs is missing (make build)" >&2; exit 1; }
calls=$SRC/testcases/kernel/syscalls

if [ ! -e "$SRC/include/config.h" ]; then
	(cd "$SRC" && make autotools && ./configure) >/dev/null
fi
if [ ! -e "$SRC/artifactfs-built" ]; then
	make -C "$SRC/lib" -j2 >/dev/null
	for d in $dirs; do make -k -j2 -C "$calls/$d" >/dev/null 2>&1 || true; done # what does not build here is not run
	touch "$SRC/artifactfs-built"
fi

tmp=$(mktemp -d "${TMPDIR:-/tmp}/ltp.XXXXXX")
chmod 755 "$tmp" # tests become other users
LOGS=${LOGS:-$tmp/logs} LATE=${LATE:-300}
export ARTIFACTFS_STATE="$tmp/state"
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE

cleanup() {
	status=$?
	trap - EXIT
	"$afs" unmount --discard "$tmp/mnt" >/dev/null 2>&1 || true
	"$afs" unmount --all >/dev/null 2>&1 || true
	if grep -qF " $tmp/mnt fuse" /proc/self/mounts; then umount -l "$tmp/mnt" || true; fi
	rm -rf --one-file-system "$tmp" 2>/dev/null || { sleep 2 && rm -rf --one-file-system "$tmp"; }
	exit $status
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir -p "$tmp/dir/t" "$LOGS"
git init -q "$tmp/source"
git -C "$tmp/source" -c user.name=suite -c user.email=suite@example.invalid commit -q --allow-empty -m empty
"$afs" mount "$tmp/source" "$tmp/mnt" --allow-other --checkpoint off >/dev/null
mkdir "$tmp/mnt/t"
chmod 777 "$tmp/dir/t" "$tmp/mnt/t"

# run TEST PLACE LOG: sets result and skipped. Arguments of a test are in LTP's own table.
run() {
	status=0
	line=$(awk -v t="$1" '$2 == t { $1 = ""; print; exit }' "$SRC/runtest/syscalls")
	(cd "$2" && TMPDIR=$2 PATH=$PATH:$bin LTP_COLORIZE_OUTPUT=n setsid timeout -k 10 "$LATE" \
		sh -c "exec ${line:-$1}") >"$3" 2>&1 </dev/null || status=$?
	case $status in
	0) result=passed ;;
	32) result=left ;;
	124 | 137) result=late ;;
	*) result=failed ;;
	esac
	skipped=$(grep -c TCONF "$3" || true)
}

for d in $dirs; do
	for source in "$calls/$d"/*.c; do
		name=$(basename "$source" .c) bin=$calls/$d
		[ -x "$bin/$name" ] || continue
		if [ $# -gt 0 ]; then
			chosen=
			for p; do
				# shellcheck disable=SC2254 # a pattern on purpose
				case $name in $p) chosen=1 ;; esac
			done
			[ "$chosen" ] || continue
		fi
		if grep -qE 'needs_device|mount_device|all_filesystems|format_device|needs_rofs|tst_acquire_device' "$source"; then continue; fi
		run "$name" "$tmp/dir/t" "$LOGS/$name.plain"
		plain=$result before=$skipped mount=-
		if [ "$plain" = passed ]; then
			run "$name" "$tmp/mnt/t" "$LOGS/$name.mount"
			if [ "$result" != passed ]; then run "$name" "$tmp/mnt/t" "$LOGS/$name.mount"; fi
			mount=$result
			if [ "$mount" = left ] || { [ "$mount" = passed ] && [ "$skipped" -gt "$before" ]; }; then mount=partly; fi
			if grep -q "^$name[[:space:]]" "$expected"; then
				if [ "$mount" = passed ]; then mount=unexpected; else mount=expected; fi
			fi
		fi
		printf '%s %s %s\n' "$name" "$plain" "$mount"
	done
done | tee "$LOGS/results"
awk '{ plain[$2]++; mount[$3]++ }
	END { printf "%d tests: %d pass in the plain directory; of them in the mount %d pass, %d fail as expected, %d pass unexpectedly, %d partly, %d fail, %d are late\n",
		NR, plain["passed"], mount["passed"], mount["expected"], mount["unexpected"], mount["partly"], mount["failed"], mount["late"]
		exit mount["failed"] + mount["late"] + mount["partly"] + mount["unexpected"] > 0 }' "$LOGS/results"
