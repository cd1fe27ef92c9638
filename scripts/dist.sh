#!/bin/sh
# dist.sh DIR: writes the packages of this checkout to DIR; `make dist` runs it and sets GO, VERSION, STAMP (flags for the
# linker) and SOURCE_DATE_EPOCH. ARCHES="amd64" and FORMATS="deb" write less. The same commit gives the same bytes.
set -eu
cd "$(dirname "$0")/.."
out=$(mkdir -p "$1" && cd "$1" && pwd)
go=${GO:-go}
: "${VERSION:?make sets it}" "${STAMP:?make sets it}" "${SOURCE_DATE_EPOCH:?make sets it}"
export SOURCE_DATE_EPOCH
umask 022
host=$($go env GOHOSTARCH)
# Versions of packages begin with a digit, and later ones compare higher: without a tag it is the time of the commit.
case $VERSION in
v[0-9]*) PACKAGE_VERSION=$(echo "${VERSION#v}" | tr - +) ;;
*) PACKAGE_VERSION=0~git$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).$VERSION ;;
esac
export PACKAGE_VERSION=$(echo "${DIST_VERSION:-$PACKAGE_VERSION}" | tr - +)

work=$(mktemp -d "${TMPDIR:-/tmp}/afs-dist.XXXXXX")
trap 'rm -rf "$work"' EXIT
build() { # build ARCH DIR
	for program in artifactfs artifactfs-server artifactfs-fsmonitor artifactfs-csi; do
		package=$program tags=
		[ $program != artifactfs ] || tags=noserver
		[ $program != artifactfs-server ] || package=artifactfs
		CGO_ENABLED=0 GOOS=linux GOARCH=$1 $go build -buildvcs=false -trimpath -tags "$tags" -ldflags "-s -w $STAMP" -o "$2/$program" ./cmd/$package
	done
}
mkdir "$work/host"
build "$host" "$work/host"
formats=${FORMATS:-tar deb rpm image sbom}
case $formats in *deb* | *rpm*) GOOS= GOARCH= $go -C packaging build -buildvcs=false -o "$work/nfpm" github.com/goreleaser/nfpm/v2/cmd/nfpm ;; esac
$go build -buildvcs=false -o "$work/dist" ./internal/dist

images=
for arch in ${ARCHES:-amd64 arm64}; do
	bin=$work/$arch STAGE=$work/stage-$arch
	[ "$arch" != "$host" ] || bin=$work/host
	[ -e "$bin" ] || { mkdir "$bin" && build "$arch" "$bin"; }
	${MAKE:-make} -s -o build install DESTDIR="$STAGE" PREFIX=/usr HELPERDIR=/usr/sbin BIN="$bin" PROGRAM="$work/host/artifactfs"
	install -D -m 644 LICENSE "$STAGE/usr/share/doc/artifactfs/copyright"
	install -m 644 CHANGELOG.md README.md "$STAGE/usr/share/doc/artifactfs/"
	find "$STAGE" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
	name=artifactfs-$PACKAGE_VERSION-linux-$arch
	for format in $formats; do
		case $format in
		tar) tar -C "$STAGE" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -c usr | gzip -9n >"$out/$name.tar.gz" ;;
		deb | rpm) ARCH=$arch STAGE=$STAGE "$work/nfpm" package -f packaging/nfpm.yaml -p "$format" -t "$out/$name.$format" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; } ;;
		image)
			tree=$work/image-$arch
			install -D "$bin/artifactfs" "$tree/usr/bin/artifactfs"
			install "$bin/artifactfs-server" "$bin/artifactfs-fsmonitor" "$bin/artifactfs-csi" "$tree/usr/bin/"
			images="$images $arch=$tree"
			;;
		sbom) for p in artifactfs artifactfs-server artifactfs-fsmonitor artifactfs-csi; do
			"$work/dist" sbom -o "$out/$p-${name#artifactfs-}.spdx.json" "$bin/$p"
		done ;;
		esac
	done
done
[ -z "$images" ] || "$work/dist" image -o "$out/artifactfs-$PACKAGE_VERSION-image.tar" -tag "artifactfs:$(echo "$PACKAGE_VERSION" | tr '~+' '__')" $images
cd "$out"
sha256sum artifactfs-*"$PACKAGE_VERSION"* >SHA256SUMS
ls -l | awk 'NR > 1 { printf "%10d  %s\n", $5, $9 }'
