#!/bin/sh
# cluster-binaries.sh: builds the programs of Kubernetes that `make cluster-test` runs, from their Go modules, and prints the directory that
# contains them. The directory is in the user's cache, so they are built once: it takes about ten minutes and 5 GB for the build cache.
set -eu
version=1.34.4 # of k8s.io/kubernetes; its parts, such as k8s.io/api, have the version 0.34.4
provisioner=5.3.0 # of github.com/kubernetes-csi/external-provisioner/v5
programs='kubelet kube-apiserver kube-controller-manager kube-scheduler kubectl'
go=${GO:-go}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/artifactfs-cluster
dir=$cache/v$version

complete() { for p in $programs csi-provisioner; do [ -x "$dir/$p" ] || return 1; done; }
if complete; then
	echo "$dir"
	exit
fi
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9 # another run may be building
if complete; then
	echo "$dir"
	exit
fi
echo "cluster: building Kubernetes $version (once, about ten minutes)" >&2
work=$(mktemp -d "$cache/build.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
cd "$work"
directory() { $go mod download -json "$1" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'; }
source=$(directory "k8s.io/kubernetes@v$version")
cp "$source/go.mod" "$source/go.sum" .
chmod u+w go.mod go.sum
# In Kubernetes' own repository the parts are directories. The module of Kubernetes does not contain them, but they are modules too.
sed -i -E "s#^(replace )?(\s*)(k8s.io/[a-z-]+) => ./staging/src/.*#\1\2\3 => \3 v0${version#1}#; s/^module .*/module cluster.test/" go.mod
printf '\nrequire k8s.io/kubernetes v%s\n' "$version" >>go.mod
vars=k8s.io/component-base/version # without these variables, the programs have the version 0.0.0
stamp="-s -w -X $vars.gitVersion=v$version -X $vars.gitMajor=1 -X $vars.gitMinor=34"
mkdir -p "$dir"
for p in $programs; do
	[ -x "$dir/$p" ] && continue
	CGO_ENABLED=0 GOFLAGS=-mod=mod nice $go build -trimpath -ldflags "$stamp" -o "$work/$p" "k8s.io/kubernetes/cmd/$p" >&2
	mv "$work/$p" "$dir/$p"
done
mkdir "$work/provisioner"
cp -r "$(directory "github.com/kubernetes-csi/external-provisioner/v5@v$provisioner")/." "$work/provisioner"
chmod -R u+w "$work/provisioner"
cd "$work/provisioner"
CGO_ENABLED=0 GOFLAGS=-mod=mod nice $go build -trimpath -ldflags '-s -w' -o "$work/csi-provisioner" ./cmd/csi-provisioner >&2
mv "$work/csi-provisioner" "$dir/csi-provisioner"
echo "$dir"
