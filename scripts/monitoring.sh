#!/bin/sh
# Tests deploy/monitoring with a real Prometheus. If it is not installed, its two programs are taken out of Debian's package (19 MB)
# into bin/prometheus: to install the package would also install a service, and 300 MB of what its pages need.
set -eu
cd "$(dirname "$0")/.."
dir=$PWD/bin/prometheus
if ! command -v prometheus >/dev/null || ! command -v promtool >/dev/null; then
	if ! [ -x "$dir/usr/bin/prometheus" ]; then
		work=$(mktemp -d)
		trap 'rm -rf "$work"' EXIT
		trap 'exit 130' INT
		trap 'exit 143' TERM
		chmod 755 "$work" # apt downloads as another user
		(cd "$work" && apt-get download -qq prometheus)
		dpkg-deb -x "$work"/prometheus_*.deb "$work/root"
		mkdir -p "$dir/usr/bin"
		mv "$work/root/usr/bin/promtool" "$work/root/usr/bin/prometheus" "$dir/usr/bin/"
	fi
	PATH=$dir/usr/bin:$PATH
fi
exec "${GO:-go}" test -buildvcs=false -count=1 -v -run 'TestMonitoring' ./integration
