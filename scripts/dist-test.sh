#!/bin/sh
# dist-test.sh: builds the Debian package twice, as an older and a newer version, and installs, upgrades and removes it with
# dpkg in a root of its own: this host's files with an overlay in memory above them, in a mount and PID namespace. A program
# works in a mount during the upgrade and must not see an error. Needs root and a Debian host; exits with 77 without them.
set -eu
[ "${2:-}" = --chroot ] || cd "$(dirname "$0")/.."
skip() {
	echo "dist-test: skipped: $*"
	exit 77
}

if [ "${1:-}" != --inside ]; then
	[ "$(id -u)" -eq 0 ] || skip "needs root"
	for p in dpkg unshare chroot fusermount3; do command -v $p >/dev/null || skip "there is no $p"; done
	[ -c /dev/fuse ] || skip "there is no /dev/fuse"
	work=$(mktemp -d /tmp/afs-dist-test.XXXXXX)
	mkdir "$work/ns"
	trap 'rm -rf "$work"' EXIT
	for n in 1 2; do
		DIST_VERSION=0.0.$n VERSION=v0.0.$n STAMP="-X main.version=v0.0.$n" SOURCE_DATE_EPOCH=1700000000 ARCHES=$(go env GOHOSTARCH) FORMATS=deb \
			scripts/dist.sh "$work/deb" >/dev/null
	done
	unshare --mount --pid --fork --kill-child --propagation private scripts/dist-test.sh --inside "$work"
	exit
fi

fail() {
	echo "dist-test: $*" >&2
	exit 1
}

if [ "$2" = --chroot ]; then
	deb=/mnt export HOME=/root GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
	unset ARTIFACTFS_STATE XDG_STATE_HOME TMPDIR
	export PATH=/usr/sbin:/usr/bin:/sbin:/bin
	quiet() { "$@" >/tmp/log 2>&1 || { cat /tmp/log; fail "$*"; }; }
	git init -q /srv/r && cd /srv/r && echo hello >README.md && git add . &&
		git -c user.name=t -c user.email=t@t.invalid commit -qm first && cd /

	quiet dpkg -i $deb/*0.0.1*.deb
	artifactfs version | grep -q v0.0.1 || fail "installed: got $(artifactfs version), want v0.0.1"
	[ -s /usr/share/man/man1/artifactfs-mount.1 ] || fail "the package has no manual pages"
	quiet artifactfs mount /srv/r /srv/app
	# The program at work: an open file that it appends to, and uncached reads of another one.
	(
		exec 3>>/srv/app/log
		n=0
		while [ ! -e /tmp/stop ]; do
			n=$((n + 1))
			echo $n >&3 && [ "$(cat /srv/app/README.md)" = hello ] && [ "$(tail -n 1 /srv/app/log)" = $n ] || { echo "line $n" >/tmp/error; exit; }
		done
	) &
	sleep 0.5
	before=$(wc -l </srv/app/log)

	quiet dpkg -i $deb/*0.0.2*.deb
	artifactfs status --json >/tmp/status
	grep -q '"version":"v0.0.2"' /tmp/status || fail "the daemon after the upgrade: got $(cat /tmp/status), want v0.0.2"
	grep -q '"takeovers":1' /tmp/status || fail "the upgrade: got $(cat /tmp/status), want one takeover"
	sleep 0.5
	touch /tmp/stop
	wait
	[ ! -e /tmp/error ] || fail "the program in the mount failed during the upgrade: $(cat /tmp/error)"
	after=$(wc -l </srv/app/log)
	[ "$after" -gt "$before" ] && [ "$after" = "$(tail -n 1 /srv/app/log)" ] || fail "lines written: $before before the upgrade, $after after it"

	quiet dpkg -r artifactfs
	! grep -q ' /srv/app ' /proc/self/mounts || fail "the removal left the mount"
	[ ! -e /usr/bin/artifactfs ] && [ ! -e /usr/sbin/mount.fuse.artifactfs ] || fail "the removal left programs"
	left=$(find /usr -name '*artifactfs*' -newer /tmp/status ! -path '/usr/share/doc*')
	[ -z "$left" ] || fail "the removal left $left"

	quiet dpkg -i $deb/*0.0.2*.deb # the session is still there
	quiet artifactfs mount /srv/r /srv/app
	[ "$(wc -l </srv/app/log)" = "$after" ] || fail "the session after another installation: got $(wc -l </srv/app/log) lines, want $after"
	quiet dpkg -P artifactfs
	[ -d /var/lib/artifactfs/mounts ] || fail "the purge removed the sessions"
	echo "dist-test: installed, upgraded with a mount in use ($before lines before, $after after), removed, installed again, purged"
	exit
fi

root=$2/root
mount -t tmpfs -o size=1G tmpfs "$2/ns"
mkdir "$2/ns/upper" "$2/ns/work" "$root"
mount -t overlay -o lowerdir=/,upperdir="$2/ns/upper",workdir="$2/ns/work" overlay "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mkdir -p "$root/var/lib/artifactfs"
for d in run tmp srv var/lib/artifactfs; do mount -t tmpfs -o mode=755 tmpfs "$root/$d"; done
mount --bind "$2/deb" "$root/mnt"
install scripts/dist-test.sh "$root/tmp/dist-test.sh"
chroot "$root" /bin/sh /tmp/dist-test.sh --inside --chroot
