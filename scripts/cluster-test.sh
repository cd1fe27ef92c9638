#!/bin/sh
# cluster-test.sh [FLAGS] PACKAGE...: runs the tests of the packages that need a Kubernetes cluster, with `go test FLAGS`. If this machine
# cannot run a cluster, it prints one line and exits with 0.
set -eu
cd "$(dirname "$0")/.."
skip() {
	echo "cluster: NOT TESTED: $1" >&2
	exit 0
}
[ "$(id -u)" = 0 ] || skip "a cluster needs root"
[ -c /dev/fuse ] || skip "there is no /dev/fuse"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
unshare --mount --pid --net --ipc --fork --mount-proc true 2>"$log" || skip "no namespaces can be made: $(tail -n 1 "$log")"
scripts/setup.sh cluster >"$log" 2>&1 || skip "programs are missing: $(tail -n 1 "$log")"
AFS_CLUSTER=$(scripts/cluster-binaries.sh) || skip "the programs of Kubernetes cannot be built"
export AFS_CLUSTER
rm -f "$log"
exec "${GO:-go}" test -buildvcs=false -count=1 -v -p 1 "$@" # one cluster at a time
