#!/bin/bash
# Compare a mount before and after another version of artifactfs has taken over its state directory.
#
#   scripts/compat.sh OLD NEW [unmount|kill|upgrade]
#
# OLD and NEW are directories with the programs artifactfs and artifactfs-fsmonitor. With unmount (the default) OLD unmounts and NEW
# mounts again, with kill all processes of OLD are killed, with upgrade NEW replaces OLD under the mount. Ends with 0 if git and the
# file system show the same before and after.
set -eu
old=$1/artifactfs new=$2/artifactfs mode=${3:-unmount}
work=$(mktemp -d)
state=$work/state dir=$work/m
export HOME=$work GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org

# Stop the daemon of the state directory and wait for its end.
stop() {
	pkill -TERM -f "daemon --state $state" || return 0
	while pgrep -f "daemon --state $state" >/dev/null; do sleep 0.1; done
}
cleanup() {
	stop
	umount -l "$dir" 2>/dev/null || true
	rm -rf "$work"
}
trap cleanup EXIT

show() {
	cd "$dir"
	git status --porcelain
	git log --format=%H -5 --all
	git ls-files -s | sha256sum
	find . -path ./.git -prune -o -type f -printf '%m %p\n' -exec sha256sum {} + | sort | sha256sum
	readlink link
	cd /
}

git init -q --bare "$work/session.git"
git init -q "$work/src"
cd "$work/src"
for i in $(seq 200); do mkdir -p "d$((i % 7))"; seq "$i" >"d$((i % 7))/f$i"; done
echo readme >README.md
echo all: >Makefile
git add .
git commit -q -m base
cd /
git clone -q --bare "$work/src" "$work/r.git"
"$old" --state "$state" mount "file://$work/r.git" "$dir" --session-remote "$work/session.git"
cd "$dir"
echo new >new.txt
git mv README.md READ.md
git rm -q Makefile
mkdir -p a/b
head -c 3000000 /dev/urandom >a/b/big
ln -s x link
chmod +x d1/f1
git add new.txt
git commit -q -m one
git branch side
echo more >>new.txt
echo z >untracked
cd /
"$old" --state "$state" checkpoint "$dir" --pin keep
echo late >"$dir/late"
show >"$work/before"
case $mode in
unmount) "$old" --state "$state" unmount "$dir"; stop ;;
upgrade) "$new" --state "$state" daemon --upgrade ;;
kill)
	pkill -KILL -f -- "--state $state" || true
	umount -l "$dir"
	;;
esac
[ "$mode" = upgrade ] || "$new" --state "$state" mount "file://$work/r.git" "$dir" --session-remote "$work/session.git"
show >"$work/after"
"$new" --state "$state" session log -C "$dir"
"$new" --state "$state" unmount "$dir"
diff "$work/before" "$work/after"
echo "$mode: the same before and after"
