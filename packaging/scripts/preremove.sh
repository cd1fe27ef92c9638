#!/bin/sh
# Before a removal: unmount everything. dpkg passes "upgrade NEW-VERSION" or "remove", rpm the number of versions that remain.
set -e
case ${1:-} in upgrade | 1) exit 0 ;; esac
if [ -d /run/systemd/system ]; then
	systemctl disable --now artifactfs.service artifactfs-server.service || true
fi
[ -S /var/lib/artifactfs/run/daemon.sock ] || exit 0
pid=$(/usr/bin/artifactfs status --json 2>/dev/null | sed -n 's/.*"daemon":{[^}]*"supervisor":\([0-9]*\).*/\1/p')
[ -n "$pid" ] || exit 0
kill -TERM "$pid" 2>/dev/null || exit 0
for _ in $(seq 600); do
	kill -0 "$pid" 2>/dev/null || exit 0
	sleep 0.1
done
echo "artifactfs: the daemon (pid $pid) is still unmounting" >&2
