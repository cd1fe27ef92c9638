#!/bin/bash
# Upgrade several daemons one after the other while their mounts are used, and downgrade them again.
#
#   scripts/rolling-upgrade.sh OLD NEW [DAEMONS [MOUNTS]]
#
# OLD and NEW are directories with the programs artifactfs and artifactfs-fsmonitor. DAEMONS (3) daemons of OLD are started with MOUNTS
# (4) mounts each. In each mount a program reads, writes and commits, and compares what it reads. Then `daemon --upgrade` replaces the
# daemons by NEW, one after the other, and after that by OLD again. Ends with 0 if no program saw an error, every daemon changed its
# version both times, and all commits are in the mounts and in the session remotes. If a direction is refused, which is right for a
# version that cannot read what the other one has written, that is printed, and the exit code is 3.
set -eu
old=$1/artifactfs new=$2/artifactfs daemons=${3:-3} mounts=${4:-4}
work=$(mktemp -d)
export HOME=$work GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org
loads=() supervisors=()

cleanup() {
	touch "$work/stop"
	for pid in "${loads[@]}"; do wait "$pid" 2>/dev/null || true; done
	for pid in "${supervisors[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
	for pid in "${supervisors[@]}"; do
		for _ in $(seq 600); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
	done
	grep -o " $work/m[^ ]* fuse" /proc/self/mounts | while read -r dir _; do
		echo "still mounted: $dir" >&2
		umount -l "$dir"
	done
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# status prints a field of the daemon: version or pid.
status() { "$new" --state "$work/d$1" status --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["daemon"][sys.argv[1]])' "$2"; }

# load uses a mount until the file stop exists. It prints each error, and writes the longest duration of a round in milliseconds.
load() {
	local dir=$1 n=0 longest=0 began took want
	want=$(sha256sum <"$work/src/d1/f1")
	while ! [ -e "$work/stop" ]; do
		n=$((n + 1)) began=$(date +%s%N)
		[ "$(sha256sum <"$dir/d1/f1")" = "$want" ] || echo "round $n: f1 differs"
		echo "$n" >"$dir/count" && [ "$(cat "$dir/count")" = "$n" ] || echo "round $n: count differs"
		mkdir "$dir/tmp" && touch "$dir/tmp/x" && mv "$dir/tmp/x" "$dir/tmp/y" && rm -r "$dir/tmp" || echo "round $n: names"
		git -C "$dir" status --porcelain >/dev/null || echo "round $n: status"
		if [ $((n % 5)) = 0 ]; then
			git -C "$dir" add -A && git -C "$dir" commit -qm "round $n" || echo "round $n: commit"
		fi
		took=$((($(date +%s%N) - began) / 1000000))
		[ "$took" -le "$longest" ] || longest=$took
		sleep 0.1
	done
	git -C "$dir" add -A && git -C "$dir" commit -qm last --allow-empty || echo "last commit"
	echo "$n $longest" >"$dir.result"
}

# replace replaces every daemon by another program, one after the other.
replace() {
	local i failed=0 want
	want=$("$1" version | head -1)
	for i in $(seq "$daemons"); do
		if ! "$1" --state "$work/d$i" daemon --upgrade; then
			failed=1
			echo "daemon $i: refused, and continues as $(status "$i" version)"
			continue
		fi
		case "$want" in *"$(status "$i" version)"*) ;; *) echo "daemon $i does not run $want"; exit 1 ;; esac
		sleep 2 # the load runs with both versions
	done
	return $failed
}

git init -q "$work/src"
for i in $(seq 200); do mkdir -p "$work/src/d$((i % 7))"; seq "$i" >"$work/src/d$((i % 7))/f$i"; done
git -C "$work/src" add .
git -C "$work/src" commit -q -m base
git clone -q --bare "$work/src" "$work/r.git"
for i in $(seq "$daemons"); do
	setsid "$old" --state "$work/d$i" daemon >/dev/null 2>"$work/d$i.log" &
	supervisors+=($!)
	for _ in $(seq 100); do "$old" --state "$work/d$i" status >/dev/null 2>&1 && [ -S "$work/d$i/run/daemon.sock" ] && break; sleep 0.1; done
	for j in $(seq "$mounts"); do
		git init -q --bare "$work/s$i-$j.git"
		"$old" --state "$work/d$i" mount "file://$work/r.git" "$work/m$i-$j" --session-remote "$work/s$i-$j.git" >/dev/null
		load "$work/m$i-$j" >"$work/m$i-$j.errors" 2>&1 &
		loads+=($!)
	done
done
echo "$daemons daemons with $mounts mounts each: $("$old" version | head -1), load $(cut -d' ' -f1-3 /proc/loadavg)"
sleep 3
refused=0
echo "upgrade:"
replace "$new" || refused=1
echo "downgrade:"
replace "$old" || refused=1
sleep 2
touch "$work/stop"
wait "${loads[@]}"
loads=()
bad=0 rounds=0 longest=0
for i in $(seq "$daemons"); do
	for j in $(seq "$mounts"); do
		dir=$work/m$i-$j
		read -r n l <"$dir.result"
		rounds=$((rounds + n))
		[ "$l" -le "$longest" ] || longest=$l
		if [ -s "$dir.errors" ]; then
			bad=1
			sed "s|^|mount $i-$j: |" "$dir.errors"
		fi
		"$old" --state "$work/d$i" sync "$dir" --timeout 1m >/dev/null || bad=1
		head=$(git -C "$dir" rev-parse HEAD)
		commits=$(git -C "$dir" rev-list --count HEAD)
		[ "$commits" = $((n / 5 + 2)) ] || { echo "mount $i-$j: $commits commits, want $((n / 5 + 2))"; bad=1; }
		git -C "$work/s$i-$j.git" for-each-ref --format='%(objectname)' | grep -q "$head" || { echo "mount $i-$j: $head was not pushed"; bad=1; }
	done
done
echo "$rounds rounds of the programs, longest ${longest} ms"
[ "$bad" = 0 ] || exit 1
[ "$refused" = 0 ] || exit 3
echo "no error in any program; all commits are pushed"
