#!/bin/sh
# Builds gitea, a real forge, in a directory: `make bench BENCH="-session -forge DIRECTORY"` has it as a session remote, and with
# AFS_GITEA=DIRECTORY the tests open a pull request on it.
set -eu
version=v1.26.0
dir=${1:?usage: forge.sh DIRECTORY}
[ ! -x "$dir/gitea" ] || exit 0
source=$(cd / && "${GO:-go}" mod download -json "code.gitea.io/gitea@$version" | sed -n 's/.*"Dir": "\(.*\)",*/\1/p')
mkdir -p "$dir"
cp -r "$source/." "$dir"
chmod -R u+w "$dir"
cd "$dir"
CGO_ENABLED=1 "${GO:-go}" build -tags "sqlite sqlite_unlock_notify" -o gitea .
