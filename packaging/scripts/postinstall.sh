#!/bin/sh
# After an installation or an upgrade. dpkg passes "configure OLD-VERSION", rpm the number of installed versions.
set -e
[ ! -d /run/systemd/system ] || systemctl daemon-reload || true
# A running daemon of root is replaced by the new version; its mounts continue. Daemons of other users continue with the old
# one until `artifactfs daemon --upgrade`.
if [ -S /var/lib/artifactfs/run/daemon.sock ]; then
	/usr/bin/artifactfs daemon --upgrade || echo "artifactfs: the running daemon continues with the previous version" >&2
fi
