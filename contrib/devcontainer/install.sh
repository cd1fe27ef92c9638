#!/bin/sh
# Installs the feature while the image of a dev container is built. The tool runs this script as root, with the options of
# devcontainer-feature.json as environment variables, and with the name of the container's user in _REMOTE_USER.
set -eu

fail() {
	echo "artifactfs: install feature: $*" >&2
	exit 1
}

[ "$(id -u)" = 0 ] || fail "root is required"
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
share=/usr/local/share/artifactfs

# The packages of git contain its transport for HTTP, except with apk.
if ! command -v git >/dev/null; then
	if command -v apt-get >/dev/null; then
		apt-get update && apt-get install -y --no-install-recommends git ca-certificates && rm -rf /var/lib/apt/lists/*
	elif command -v apk >/dev/null; then
		apk add --no-cache git
	elif command -v dnf >/dev/null; then
		dnf install -y git
	else
		fail "git is missing, and no known package manager exists"
	fi
fi

# fetch URL FILE
fetch() {
	if command -v curl >/dev/null; then
		curl -fsSL -o "$2" "$1"
	elif command -v wget >/dev/null; then
		wget -q -O "$2" "$1"
	else
		fail "neither curl nor wget exists to download $1"
	fi
}

program=$here/artifactfs
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
if [ -n "${URL:-}" ]; then
	[ -n "${SHA256:-}" ] || fail "the option url requires the option sha256"
	fetch "$URL" "$temp/file"
	echo "$SHA256  $temp/file" | sha256sum -c - >/dev/null || fail "$URL does not have the hash of the option sha256"
	program=$temp/file
	if tar -tf "$temp/file" >"$temp/list" 2>/dev/null; then
		member=$(grep -E '(^|/)artifactfs$' "$temp/list" | head -n 1)
		[ -n "$member" ] || fail "the archive $URL does not contain artifactfs"
		tar -xOf "$temp/file" "$member" >"$temp/program"
		program=$temp/program
		tar -xOf "$temp/file" "$member-server" >"$temp/program-server" 2>/dev/null || rm "$temp/program-server"
	fi
fi
[ -f "$program" ] || fail "copy the program artifactfs beside install.sh, or set the options url and sha256"
mkdir -p /usr/local/bin "$share"
cp "$program" /usr/local/bin/artifactfs
chmod 755 /usr/local/bin/artifactfs
if [ -f "$program-server" ]; then # for serve, relay and ui
	cp "$program-server" /usr/local/bin/artifactfs-server
	chmod 755 /usr/local/bin/artifactfs-server
fi
/usr/local/bin/artifactfs version >/dev/null || fail "artifactfs does not run in this image"

# setting NAME VALUE writes a default, which a variable of the container overrides.
setting() {
	quoted=$(printf %s "$2" | sed "s/'/'\\\\''/g")
	printf "[ -n \"\${%s:-}\" ] || %s='%s'\nexport %s\n" "$1" "$1" "$quoted" "$1"
}
{
	setting ARTIFACTFS_REMOTE "${REMOTE:-}"
	setting ARTIFACTFS_DIR "${DIR:-/workspaces/repository}"
	setting ARTIFACTFS_REF "${REF:-}"
	setting ARTIFACTFS_SESSION "${SESSION:-}"
	setting ARTIFACTFS_SESSION_REMOTE "${SESSIONREMOTE:-}"
	setting ARTIFACTFS_PREFETCH "${PREFETCH:-}"
	setting ARTIFACTFS_PROFILE "${PROFILE:-}"
	setting ARTIFACTFS_STORE_FROM "${STOREFROM:-}"
	setting ARTIFACTFS_TOKEN_FILE "${TOKENFILE:-}"
	setting ARTIFACTFS_WORKSPACE_USER "${_REMOTE_USER:-root}"
} >"$share/feature.env"
cp "$here/artifactfs-workspace" "$share/artifactfs-workspace"
chmod 755 "$share/artifactfs-workspace"
