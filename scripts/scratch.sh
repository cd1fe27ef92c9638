#!/bin/sh
# scratch.sh CMD...: runs CMD with TMPDIR on an ext4 of its own, whose device is a file in memory. Tests make and remove
# hundreds of thousands of files and sync them: on a disk they mostly wait for it, and ext4 without a journal searches through
# all inodes that were removed in the last half minute. The mount is in a mount namespace of CMD, and the file has no name: both
# end with CMD, however it ends. Where this cannot be made (no root, no loop device, too little memory, SCRATCH=no), CMD runs with
# TMPDIR as it is.
set -eu
size=8 # GiB, of which the tests need about a third

free() { [ "$(awk -v want="$size" '/^MemAvailable:/ { print ($2 / 1048576 >= want) }' /proc/meminfo)" = 1 ] &&
	[ "$(df -k --output=avail /dev/shm 2>/dev/null | tail -1)" -ge $((size * 1048576)) ]; }

if [ "${1:-}" = --in-namespace ]; then
	image=$2 dir=$3
	shift 3
	mount -o loop,discard "$image" "$dir"
	rm "$image"
	TMPDIR=$dir exec "$@"
fi
if [ "${SCRATCH:-}" = no ] || [ "$(id -u)" -ne 0 ] || ! free; then
	exec "$@"
fi
image=$(mktemp /dev/shm/artifactfs-scratch.XXXXXX)
dir=$(mktemp -d "${TMPDIR:-/tmp}/tXXX") # short: a socket may have a path of 107 bytes
trap 'rm -f "$image"; rmdir "$dir"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
status=0
if truncate -s ${size}G "$image" && mkfs.ext4 -q -F "$image" && unshare --mount sh -c 'mount -o loop "$1" "$2"' sh "$image" "$dir" 2>/dev/null; then
	unshare --mount "$0" --in-namespace "$image" "$dir" "$@" || status=$?
else
	"$@" || status=$?
fi
exit $status
