#!/bin/sh
# Tries the units of contrib/systemd under a real systemd, which runs in namespaces of its own and sees a /var/lib and a
# /usr/sbin of its own:
#
#	systemd.sh PROGRAM REMOTE [DIR]
#
# PROGRAM is an artifactfs, REMOTE a repository with a README.md, DIR where it works (a new directory of /tmp). Prints what it
# tries, and exits with 1 at the first thing that is not as it should be, with 77 where this cannot be tried here.
set -eu

[ $# -ge 2 ] || { echo "usage: $0 PROGRAM REMOTE [DIR]" >&2; exit 2; }
cd "$(dirname "$0")/.."
program=$(readlink -f "$1") remote=$2
skip() {
	echo "systemd: skipped: $*"
	exit 77
}
systemd=
for s in /lib/systemd/systemd /usr/lib/systemd/systemd; do [ ! -x $s ] || systemd=$s; done
[ "$(id -u)" -eq 0 ] || skip "needs root"
[ -n "$systemd" ] || skip "there is no systemd"
for p in unshare nsenter systemctl systemd-analyze mount; do command -v $p >/dev/null || skip "there is no $p"; done
cgroups=/sys/fs/cgroup
[ ! -d $cgroups/unified ] || cgroups=$cgroups/unified
[ -e $cgroups/cgroup.procs ] || skip "there is no cgroup2 at $cgroups"

made=
dir=${3:-}
[ -n "$dir" ] || made=1 dir=$(mktemp -d /tmp/afs-systemd.XXXXXX)
dir=$(readlink -f "$dir")
chmod 755 "$dir"
group=$cgroups/afs-systemd.$$
outer= pid=
cleanup() {
	status=$?
	trap - EXIT
	if [ $status -ne 0 ] && [ $status -ne 77 ] && [ -s "$dir/log" ]; then
		echo "-- the manager's last words:" >&2
		tail -n 40 "$dir/log" >&2
		tail -n 20 "$dir"/out.* >&2 2>/dev/null || true
	fi
	if [ -n "$outer" ]; then
		kill -KILL "$outer" 2>/dev/null || true # and with it all in its namespaces
		wait "$outer" 2>/dev/null || true
	fi
	tries=0
	while [ -d "$group" ] && [ $tries -lt 100 ]; do # what was killed is in there until it is gone
		find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null || true
		[ ! -d "$group" ] || sleep 0.05
		tries=$((tries + 1))
	done
	[ -z "$made" ] || rm -rf --one-file-system "$dir"
	exit $status
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

now() { date +%s%N; }
fail() {
	echo "systemd: $*" >&2
	exit 1
}
ok() { printf '  ok  %s\n' "$*"; }
title() { printf '%s\n' "$*"; }
# took START TEXT
took() {
	ms=$((($(now) - $1) / 1000000))
	shift
	ok "$* ($ms ms)"
}
# inside COMMAND...: among the processes of that systemd, and none of its services.
inside() { nsenter -t "$pid" -m -p -i -u -C env -u ARTIFACTFS_STATE PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
ctl() { inside systemctl "$@"; }
until_true() {
	tries=0
	until "$@"; do
		tries=$((tries + 1))
		[ $tries -lt 400 ] || fail "waited in vain for: $*"
		sleep 0.05
	done
}
mounted() { inside grep -q " $1 fuse.artifactfs " /proc/self/mounts; }
main_pid() { ctl show -p MainPID --value artifactfs; }

title "systemd-analyze verify"
[ -z "$(ls -A "$dir")" ] || fail "$dir is not empty"
mkdir -p "$dir/units" "$dir/user" "$dir/bin" "$dir/lib" "$dir/runtime"
cp "$program" "$dir/bin/artifactfs"
cp "$program-server" "$dir/bin/artifactfs-server"
for f in contrib/systemd/*.service; do sed "s|@BINDIR@|$dir/bin|g" "$f" >"$dir/units/${f##*/}"; done
for f in contrib/systemd/user/*.service; do sed "s|@BINDIR@|$dir/bin|g" "$f" >"$dir/user/${f##*/}"; done
# The example, for this remote. What a unit asks for is here, and does nothing.
for kind in mount automount; do
	sed "s|^What=.*|What=$remote|;s|,token_file=[^,]*||" contrib/systemd/examples/srv-app.$kind >"$dir/units/srv-app.$kind"
done
for t in test sysinit basic shutdown network network-online nss-lookup local-fs local-fs-pre remote-fs remote-fs-pre umount multi-user default; do
	printf '[Unit]\nDescription=%s\nDefaultDependencies=no\n' $t >"$dir/units/$t.target"
done
(cd "$dir/units" && systemd-analyze verify --man=no ./artifactfs.service ./artifactfs-server.service ./srv-app.mount ./srv-app.automount) 2>"$dir/verify" || fail "$(cat "$dir/verify")"
[ ! -s "$dir/verify" ] || fail "$(cat "$dir/verify")"
ok "the system's units"
(cd "$dir/user" && XDG_RUNTIME_DIR="$dir/runtime" systemd-analyze --user verify --man=no ./artifactfs.service) 2>"$dir/verify" || fail "$(cat "$dir/verify")"
[ ! -s "$dir/verify" ] || fail "$(cat "$dir/verify")"
ok "the user's unit"

# The unit of the server hides /tmp from it, and so $dir.
sed "s|@BINDIR@|/usr/sbin|g" contrib/systemd/artifactfs-server.service >"$dir/units/artifactfs-server.service"
mkdir "$dir/units/artifactfs-server.service.d"
printf '[Service]\nEnvironment=ARTIFACTFS_LISTEN=127.0.0.1:0\nStandardOutput=append:%s/out.server\nStandardError=append:%s/out.server\n' "$dir" "$dir" >"$dir/units/artifactfs-server.service.d/test.conf"

title "systemd in namespaces"
mkdir -p "$dir/units/artifactfs.service.d"
printf '[Service]\nStandardOutput=append:%s/out.service\nStandardError=append:%s/out.service\n' "$dir" "$dir" >"$dir/units/artifactfs.service.d/test.conf"
mkdir "$group" 2>/dev/null || skip "no group can be made in $cgroups"
cat >"$dir/init" <<'E2'
set -eu
dir=$1 systemd=$2
umount -R /sys/fs/cgroup 2>/dev/null || umount -l /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/upper /run/work
mount -t overlay overlay -o lowerdir=/usr/sbin,upperdir=/run/upper,workdir=/run/work /usr/sbin
cp "$dir/bin/artifactfs" "$dir/bin/artifactfs-server" /usr/sbin/
ln -s "$dir/bin/artifactfs" /usr/sbin/mount.fuse.artifactfs
ln -s "$dir/bin/artifactfs" /usr/sbin/umount.fuse.artifactfs
mount --bind "$dir/lib" /var/lib
mount -t tmpfs tmpfs /srv
mount --bind "$dir/log" /dev/console
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin container=artifactfs-test SYSTEMD_UNIT_PATH="$dir/units" \
	"$systemd" --system --unit=test.target --log-target=console --log-level=info --show-status=no
E2
sh -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' sh "$group" \
	unshare --pid --mount --cgroup --ipc --uts --fork --kill-child=KILL --mount-proc --propagation private sh "$dir/init" "$dir" "$systemd" >"$dir/log" 2>&1 </dev/null &
outer=$!
started() {
	kill -0 $outer 2>/dev/null || skip "systemd does not run in namespaces here: $(tail -n 1 "$dir/log")"
	pid=$(cat /proc/$outer/task/$outer/children 2>/dev/null | tr -d ' ')
	[ -n "$pid" ] && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = systemd ] && ctl is-active -q test.target 2>/dev/null
}
until_true started
ok "$(ctl --version | head -n 1)"

title "start, mount, use"
start=$(now)
ctl start artifactfs || fail "it does not start"
took "$start" "it is up, and says so"
mnt=/srv/work
inside "$dir/bin/artifactfs" mount "$remote" $mnt --session work >/dev/null || fail "it does not mount"
ok "mounted"
# A program that has files of the mount open, works in it, and never sees an error.
cat >"$dir/user.sh" <<'E2'
cd "$1" || exit 1
exec 4<README.md 5>>written 6<.
n=0
while [ ! -e "$2/stop" ]; do
	n=$((n + 1))
	echo $n >&5 || { echo "write $n failed"; exit 1; }
	[ "$(tail -n 1 written)" = $n ] || { echo "read after write $n failed"; exit 1; }
	ls . >/dev/null && cat README.md >/dev/null || { echo "round $n failed"; exit 1; }
	echo $n >"$2/rounds"
done
[ "$(wc -l <written)" = $n ] || { echo "$(wc -l <written) lines of $n"; exit 1; }
E2
inside sh "$dir/user.sh" $mnt "$dir" >"$dir/out.user" 2>&1 &
user=$!
count() { n=$(cat "$dir/rounds" 2>/dev/null) && echo "${n:-0}" || echo 0; } # the file may just be written
rounds() { [ "$(count)" -gt "$1" ] || { kill -0 $user 2>/dev/null || fail "its user failed: $(cat "$dir/out.user")"; false; }; }
goes_on() {
	seen=$(count)
	while [ "$seen" = 0 ] && ! rounds 0; do sleep 0.05; done
	until_true rounds "$(count)"
}
goes_on
ok "somebody uses it"

title "restart"
before=$(main_pid)
start=$(now)
ctl restart artifactfs
took "$start" "restarted"
[ "$(main_pid)" != "$before" ] || fail "it is the same process"
mounted $mnt || fail "the mount is gone"
goes_on
ok "its user goes on"

title "kill -9 of the supervisor"
before=$(main_pid)
start=$(now)
inside kill -KILL "$before"
is_other() { p=$(main_pid) && [ "$p" != 0 ] && [ "$p" != "$before" ] && ctl is-active -q artifactfs; }
until_true is_other
took "$start" "systemd started another"
goes_on
ok "the mount's user goes on"

title "kill -9 of everything in the service"
before=$(main_pid)
ctl kill --signal=KILL artifactfs
until_true is_other
goes_on
ok "the mount's user goes on"

title "another version"
cp "$dir/bin/artifactfs" "$dir/bin/next"
printf x >>"$dir/bin/next" # another file, which runs the same
mv "$dir/bin/next" "$dir/bin/artifactfs"
before=$(main_pid)
ctl reload artifactfs || fail "reload failed"
goes_on
[ "$(main_pid)" = "$before" ] || fail "reload made another supervisor"
[ "$(inside readlink "/proc/$before/exe")" = "$dir/bin/artifactfs" ] || fail "reload goes on with $(inside readlink "/proc/$before/exe")"
ok "reload goes on with it, in the same process"
ctl restart artifactfs
goes_on
ok "restart, too"

title "stop, start"
touch "$dir/stop"
wait $user || fail "its user failed: $(cat "$dir/out.user")"
lines=$(inside sh -c "wc -l <$mnt/written")
ok "its user saw no error in $lines rounds"
ctl stop artifactfs
! mounted $mnt || fail "it is still mounted"
[ "$(ctl show -p ActiveState --value artifactfs)" = inactive ] || fail "it is $(ctl show -p ActiveState --value artifactfs)"
ok "nothing is mounted"
ctl start artifactfs
until_true mounted $mnt
[ "$(inside sh -c "wc -l <$mnt/written")" = "$lines" ] || fail "work is missing"
ok "it is mounted again, with the work"
inside "$dir/bin/artifactfs" unmount $mnt --discard --yes >/dev/null
ctl restart artifactfs
! mounted $mnt || fail "what was unmounted is mounted again"
ok "what was unmounted stays so"

title "mount units"
start=$(now)
ctl start srv-app.mount || fail "srv-app.mount does not start"
took "$start" "srv-app.mount"
inside cat /srv/app/README.md >/dev/null || fail "nothing can be read"
ctl restart artifactfs
inside cat /srv/app/README.md >/dev/null || fail "the restart took it along"
ok "outlives a restart of the service"
ctl stop srv-app.mount
! mounted /srv/app || fail "it is still mounted"
ok "stopped, and unmounted"
ctl start srv-app.automount
start=$(now)
inside cat /srv/app/README.md >/dev/null || fail "nothing is mounted by looking"
took "$start" "srv-app.automount: mounted and read by looking"
mounted /srv/app || fail "it is not mounted"
ctl stop srv-app.automount srv-app.mount
! mounted /srv/app || fail "it is still mounted"
ok "stopped"
ctl stop artifactfs

title "the server"
home=/var/lib/artifactfs-server
server_url() { inside sed -n 's/.*"url": *"\([^"]*\)".*/\1/p' $home/server.json 2>/dev/null; }
hosting() { inside env ARTIFACTFS_SERVER="$(server_url)" ARTIFACTFS_SERVER_TOKEN_FILE=$home/admin-token artifactfs "$@"; }
serves() { ctl is-active -q artifactfs-server && hosting namespace list >/dev/null 2>&1; }
start=$(now)
ctl start artifactfs-server || fail "it does not start"
until_true serves
took "$start" "it serves"
hosting repo create team/app >/dev/null || fail "it creates no repository"
token=$(hosting token create team/app --scope write 2>/dev/null)
git init -q "$dir/work"
work() { inside git -C "$dir/work" -c safe.directory='*' -c user.name=test -c user.email=test@example.org -c "http.extraHeader=Authorization: Bearer $token" "$@"; }
work commit -q --allow-empty -m first
work push -q "$(server_url)/git/team/app.git" HEAD:refs/heads/main || fail "it takes no push"
ok "takes a push"
before=$(ctl show -p MainPID --value artifactfs-server)
start=$(now)
ctl kill --signal=KILL artifactfs-server
restarted() { p=$(ctl show -p MainPID --value artifactfs-server) && [ "$p" != 0 ] && [ "$p" != "$before" ] && serves; }
until_true restarted
took "$start" "kill -9 of everything in the service: systemd started another"
[ "$(work ls-remote "$(server_url)/git/team/app.git" refs/heads/main | cut -f 1)" = "$(work rev-parse HEAD)" ] || fail "the push is lost"
work commit -q --allow-empty -m second
work push -q "$(server_url)/git/team/app.git" HEAD:refs/heads/main || fail "it takes no push"
ok "it has the push, and takes another"
ctl stop artifactfs-server
[ "$(ctl show -p Result --value artifactfs-server)" = success ] || fail "the stop failed: $(ctl show -p Result --value artifactfs-server)"
ok "stopped"

title "the manager of a user"
if ! command -v fusermount3 >/dev/null || ! command -v setpriv >/dev/null || ! inside setpriv --reuid=65534 test -x "$dir/bin/artifactfs"; then
	echo "  --  left out: needs fusermount3, setpriv, and that everybody may see $dir"
	title "all as it should be"
	exit 0
fi
cat >"$dir/prepare" <<'E2'
set -eu
dir=$1
mkdir -p /run/user/65534 /run/home/m /sys/fs/cgroup/user@65534.service # named as logind has it
mknod -m 666 /run/fuse c 10 229 # as udev makes it
mount --bind /run/fuse /dev/fuse
chown -R 65534:65534 /run/user/65534 /run/home /sys/fs/cgroup/user@65534.service
E2
inside sh "$dir/prepare" "$dir"
mkdir "$dir/user/artifactfs.service.d"
sed 's/out.service/out.user-service/' "$dir/units/artifactfs.service.d/test.conf" >"$dir/user/artifactfs.service.d/test.conf"
: >"$dir/out.user-service" && chown 65534 "$dir/out.user-service"
for t in test basic shutdown default; do cp "$dir/units/$t.target" "$dir/user/"; done
as_user() {
	inside setpriv --reuid=65534 --regid=65534 --clear-groups env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/run/home XDG_RUNTIME_DIR=/run/user/65534 \
		SYSTEMD_UNIT_PATH="$dir/user" "$@"
}
# shellcheck disable=SC2016 # for the other shell
inside sh -c 'echo $$ >/sys/fs/cgroup/user@65534.service/cgroup.procs; exec "$@"' sh setpriv --reuid=65534 --regid=65534 --clear-groups \
	env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/run/home XDG_RUNTIME_DIR=/run/user/65534 SYSTEMD_UNIT_PATH="$dir/user" \
	"$systemd" --user --unit=test.target --log-target=console >"$dir/out.manager" 2>&1 &
until_true as_user systemctl --user is-active -q test.target 2>/dev/null
as_user systemctl --user start artifactfs || fail "it does not start"
mnt=/run/home/m
as_user "$dir/bin/artifactfs" mount "$remote" $mnt >/dev/null || fail "it does not mount"
rm -f "$dir/stop" "$dir/rounds"
: >"$dir/rounds" && chown 65534 "$dir/rounds"
as_user sh "$dir/user.sh" $mnt "$dir" >"$dir/out.user" 2>&1 &
user=$!
goes_on
as_user systemctl --user restart artifactfs
goes_on
ok "restart: the mount's user goes on"
inside kill -KILL "$(as_user systemctl --user show -p MainPID --value artifactfs)"
goes_on
until_true as_user systemctl --user is-active -q artifactfs
goes_on
ok "kill -9 of the supervisor: the mount's user goes on"
touch "$dir/stop"
wait $user || fail "its user failed: $(cat "$dir/out.user")"
as_user systemctl --user stop artifactfs
! mounted $mnt || fail "it is still mounted"
ok "stopped, and unmounted"
title "all as it should be"
