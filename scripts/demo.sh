#!/bin/sh
# Mounts this checkout's history, served from loopback with 50 ms of round trip, or $REMOTE; shows what comes when;
# takes everything down again. Exits with something else than 0 if anything is not as it should be.
set -eu
cd "$(dirname "$0")/.."
afs=$PWD/bin/artifactfs
tmp=$(mktemp -d "${TMPDIR:-/tmp}/artifactfs-demo.XXXXXX")
mnt=$tmp/mnt
server=
export ARTIFACTFS_STATE="$tmp/state"
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE

cleanup() {
	status=$?
	trap - EXIT
	trap '' INT TERM # a second Ctrl-C must not leave half of it
	for state in "$tmp/state" "$tmp/elsewhere"; do
		[ ! -d "$state" ] || "$afs" unmount --all --state "$state" >/dev/null 2>&1 || true
	done
	for dir in "$mnt" "$tmp/resumed"; do
		if grep -qF " $dir fuse" /proc/self/mounts; then
			echo "demo: $dir did not unmount, detaching it" >&2
			detach "$dir"
			[ $status -ne 0 ] || status=1
		fi
	done
	if [ -n "$server" ]; then
		kill "$server" 2>/dev/null || true
		wait "$server" 2>/dev/null || true
	fi
	if [ $status -ne 0 ] && [ $status -lt 128 ] && [ -s "$tmp/state/log/daemon.log" ]; then
		echo "-- the daemon's last words:" >&2
		tail -n 20 "$tmp/state/log/daemon.log" >&2
	fi
	rm -rf --one-file-system "$tmp"
	exit $status
}
# detach takes a mount away that no process serves.
detach() { umount -l "$1" 2>/dev/null || fusermount3 -uz "$1" || true; }
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
	echo "demo: $*" >&2
	exit 1
}
now() { date +%s%N; }
title() { printf '\n%s\n' "$*"; }
# took START TEXT: a line with the milliseconds since START.
took() {
	ms=$((($(now) - $1) / 1000000))
	shift
	printf '  %6d ms  %s\n' "$ms" "$*"
}
# number NAME JSON: the first number of that name.
number() { printf '%s\n' "$2" | sed -n "s/.*\"$1\":\\(-\\{0,1\\}[0-9][0-9]*\\).*/\\1/p" | head -n 1; }
# blobs NAME STATUS: a number that status prints of contents.
blobs() { number "$1" "$(printf '%s\n' "$2" | sed 's/.*"blobs":\({[^}]*}\).*/\1/')"; }

# serve makes a bare repository of this checkout, whatever state that is in, and serves it: sets url.
serve() {
	"${GO:-go}" build -buildvcs=false -o bin/gitserve ./integration/harness/gittest/gitserve
	bare=$tmp/srv/artifactfs.git
	git init -q --bare "$bare"
	# The checkout may belong to another user; that is no reason to mistrust it here.
	export GIT_CONFIG_GLOBAL="$tmp/gitconfig"
	git config --global safe.directory '*'
	if git rev-parse -q --verify HEAD >/dev/null 2>&1; then
		git -C "$bare" fetch -q --update-shallow "$PWD" +HEAD:refs/heads/main
	else
		echo "no git history here, so it is one commit of the files"
		export GIT_AUTHOR_NAME=demo GIT_AUTHOR_EMAIL=demo@localhost GIT_COMMITTER_NAME=demo GIT_COMMITTER_EMAIL=demo@localhost
		git --git-dir="$bare" --work-tree=. add -A
		tree=$(git --git-dir="$bare" write-tree)
		git --git-dir="$bare" update-ref refs/heads/main "$(git --git-dir="$bare" commit-tree -m demo "$tree")"
	fi
	git -C "$bare" symbolic-ref HEAD refs/heads/main
	git -C "$bare" config uploadpack.allowFilter true
	git -C "$bare" config uploadpack.allowAnySHA1InWant true
	unset GIT_CONFIG_GLOBAL

	bin/gitserve -root "$tmp/srv" -rtt 50ms >"$tmp/urls" 2>"$tmp/gitserve.log" &
	server=$!
	tries=0
	until url=$(grep -m 1 -o 'http://[^ ]*' "$tmp/urls"); do
		kill -0 "$server" 2>/dev/null || fail "the server ended: $(cat "$tmp/gitserve.log")"
		tries=$((tries + 1))
		[ $tries -lt 200 ] || fail "the server prints no URL"
		sleep 0.05
	done
}

if [ -n "${REMOTE:-}" ]; then
	url=$REMOTE
else
	title "Serving this checkout's history with a round trip of 50 ms"
	serve
	echo "  $url"
fi

# Without prefetch, so that what is read below is read cold; the default would bring it in the background at once.
title "artifactfs mount $url DIR --prefetch none"
start=$(now)
reply=$("$afs" mount --json --prefetch none "$url" "$mnt")
took "$start" "the command is back: the tree can be read"
printf '             (connected after %s ms, root directory after %s ms)\n' "$(number connect "$reply")" "$(number tree "$reply")"

title "What is there"
start=$(now)
names=$(ls "$mnt")
took "$start" "ls: $(echo "$names" | wc -l) names in the root directory"
start=$(now)
files=$(find "$mnt" -name .git -prune -o \( -type f -o -type l \) -print | wc -l)
took "$start" "find: $files files in the whole tree"
[ "$files" -gt 0 ] || fail "the tree is empty"
status=$("$afs" status --json "$mnt")
echo "             contents fetched for all that: $(blobs fetched "$status") of $(blobs total "$status")"

title "git in the mount"
start=$(now)
changes=$(git -C "$mnt" status --porcelain) || fail "git status does not work"
took "$start" "git status: $([ -z "$changes" ] && echo clean || echo "$changes")"
[ -z "$changes" ] || fail "git status finds changes where there are none"
start=$(now)
commits=$(git -C "$mnt" log --oneline | wc -l)
took "$start" "git log: $commits commits, which came behind the mount"
status=$("$afs" status --json "$mnt")
echo "             contents fetched for all that: $(blobs fetched "$status")"

title "Reading"
# Any file, chosen by its name alone: to ask for sizes would bring contents already.
file=$(find "$mnt" -mindepth 2 -type f | sort | tail -n 1)
file=${file:-$(find "$mnt" -type f | sort | tail -n 1)}
start=$(now)
bytes=$(cat "$file" | wc -c) # wc alone would only ask for the size
took "$start" "first read of ${file#"$mnt"/}, $bytes bytes"
start=$(now)
cat "$file" >/dev/null
took "$start" "second read"
status=$("$afs" status --json "$mnt")
echo "             contents fetched until now: $(blobs fetched "$status"), it and its small neighbours"

title "artifactfs prefetch DIR: the rest, in the background"
start=$(now)
"$afs" prefetch "$mnt" >/dev/null
while :; do
	status=$("$afs" status --json "$mnt")
	here=$(blobs fetched "$status") total=$(blobs total "$status")
	took "$start" "$here of $total contents, $(number requests "$status") requests since the mount"
	[ "$here" -lt "$total" ] || break
	if [ $((($(now) - start) / 1000000000)) -ge 20 ]; then
		[ -n "${REMOTE:-}" ] || fail "hydration does not come to its end"
		echo "             and so on"
		break
	fi
	sleep 0.1
done

if [ -z "${REMOTE:-}" ]; then
	title "Comparing every byte with a checkout"
	mkdir "$tmp/plain"
	GIT_INDEX_FILE="$tmp/index" git --git-dir="$bare" --work-tree="$tmp/plain" checkout -q -f main -- .
	start=$(now)
	diff -r --no-dereference -x .git "$tmp/plain" "$mnt" || fail "the mount differs from a checkout"
	took "$start" "equal"
fi

# change DIR: what a session of work may do to a tree, of repositories with and without directories.
change() {
	dir=$(cd "$1" && find . -mindepth 1 -maxdepth 1 -type d ! -name .git | sort | head -n 1)
	file=$(cd "$1" && find . -maxdepth 1 -type f ! -name .git | sort | head -n 1)
	[ -z "$dir" ] || mv "$1/$dir" "$1/demo-moved"
	[ -z "$file" ] || echo 'changed by the demo' >>"$1/$file"
	mkdir "$1/demo-new"
	seq 1 1000 | split -l 1 -a 3 - "$1/demo-new/" # a thousand files
}

title "Writing: a directory renamed, a file changed, 1,000 files made"
start=$(now)
change "$mnt"
took "$start" "done"
start=$(now)
git -C "$mnt" add -A
git -C "$mnt" -c user.name=demo -c user.email=demo@localhost commit -q -m 'the demo was here'
took "$start" "git add, git commit: $(git -C "$mnt" show --shortstat --format= HEAD)"

title "kill -9 of the process that serves"
daemon=$("$afs" status --json)
start=$(now)
kill -9 "$(number pid "$daemon")"
names=$(ls "$mnt")
took "$start" "ls: $(echo "$names" | wc -l) names; no process in the mount notices"

title "kill -9 of all of the daemon, and artifactfs mount again"
kill -9 "-$(number supervisor "$daemon")"
start=$(now)
"$afs" mount --prefetch none "$url" "$mnt" >/dev/null
took "$start" "the tree is there again"
changes=$(git -C "$mnt" status --porcelain)
[ -z "$changes" ] || fail "git status after the kill: $changes"
took "$start" "git status: clean, on top of $(git -C "$mnt" log -1 --format=%s)"
if [ -z "${REMOTE:-}" ]; then
	change "$tmp/plain"
	diff -r --no-dereference -x .git "$tmp/plain" "$mnt" || fail "the mount differs from a directory with the same changes"
	took "$start" "equal to a plain directory with the same changes"
fi

title "artifactfs status DIR"
"$afs" status "$mnt" | sed 's/^/  /'

title "artifactfs unmount --all"
start=$(now)
"$afs" unmount --all 2>&1 | sed 's/^/  /'
took "$start" "unmounted"
! grep -qF " $mnt fuse" /proc/self/mounts || fail "still mounted"
[ ! -e "$mnt" ] || fail "the directory that mount made is still there"

title "A session with a repository of its own: --session demo --session-remote work.git, which the mount creates"
"$afs" mount --session demo --session-remote "$tmp/work.git" --prefetch none "$url" "$mnt" 2>&1 | sed 's/^/  /'
commit() { git -C "$mnt" -c user.name=demo -c user.email=demo@localhost commit -q --allow-empty -m "$1"; }
# arrives: returns when the session remote has the commit that was made last.
arrives() {
	"$afs" sync --timeout 2m "$mnt" >/dev/null || fail "the commit does not come to the session remote: $("$afs" status "$mnt")"
}
start=$(now)
commit 'the first'
arrives
took "$start" "git commit: it is in work.git, $(du -sk "$tmp/work.git" | cut -f1) KiB, which has what the session made and names the base"
start=$(now)
commit 'the second'
arrives
took "$start" "git commit: it is in work.git"
change "$mnt"
echo staged >"$mnt/demo-staged"
git -C "$mnt" add demo-staged
start=$(now)
id=$("$afs" checkpoint --sync -m 'the demo' "$mnt")
took "$start" "artifactfs checkpoint --sync: $id, 1,000 new files and all, is in work.git"
before=$(git -C "$mnt" status --porcelain | LC_ALL=C sort)
commit=$(git -C "$mnt" rev-parse HEAD)

title "kill -9 of all of the daemon, and artifactfs session resume demo with another state directory"
kill -9 "-$(number supervisor "$("$afs" status --json)")"
detach "$mnt"
export ARTIFACTFS_STATE="$tmp/elsewhere"
start=$(now)
"$afs" session resume demo "$tmp/resumed" --session-remote "$tmp/work.git" --prefetch none >/dev/null
took "$start" "the tree is there"
[ "$(git -C "$tmp/resumed" rev-parse HEAD)" = "$commit" ] || fail "HEAD is another one"
after=$(git -C "$tmp/resumed" status --porcelain | LC_ALL=C sort)
[ "$after" = "$before" ] || fail "git status is not what it was"
took "$start" "git status and HEAD are as they were: $(echo "$after" | wc -l) lines"
"$afs" session log "$tmp/resumed" | head -n 4 | sed 's/^/  /'
"$afs" unmount --all 2>&1 | sed 's/^/  /'
! grep -qF " $tmp/resumed fuse" /proc/self/mounts || fail "still mounted"
echo
