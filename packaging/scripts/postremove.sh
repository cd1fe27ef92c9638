#!/bin/sh
# After a removal. The state directory holds sessions, which are the work of users: it stays, after a purge too.
set -e
case ${1:-} in upgrade | 1) exit 0 ;; esac
[ ! -d /run/systemd/system ] || systemctl daemon-reload || true
if [ "${1:-}" = purge ] && [ -d /var/lib/artifactfs ]; then
	echo "artifactfs: /var/lib/artifactfs has sessions and was kept; remove it by hand" >&2
fi
