#!/bin/sh
# Installs what artifactfs and its tests need beside Go: git with its HTTP and git:// servers, fusermount3 for mounts
# of users; for tests an ssh server, git-lfs, fio, PostgreSQL and other implementations of git, and Chromium. With the argument `run` only what
# it takes to run it, with `race` also the C compiler that the race detector needs, with `cluster` also the programs of a Kubernetes node.
# Prints what it installs, and does nothing if nothing is missing.
set -eu

have() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1; }
missing=
want() { missing="$missing $*"; }

have git || want git
if have git && ! [ -x "$(git --exec-path)/git-http-backend" ]; then want git; fi
have fusermount3 || want fuse3
have umount || want mount
if [ "${1:-}" != run ]; then
	have sshd || want openssh-server
	have ssh || want openssh-client
	have git-lfs || want git-lfs
	have systemctl || want systemd
	have unshare || want util-linux
	have fio || want fio
	have jq || want jq     # commands of the documents, which a test runs
	have curl || want curl # installs the Dev Container feature
	have postgres || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || want postgresql
	# Clients of the server: other implementations of git, and what runs the generated clients.
	have python3 || want python3
	[ -d /usr/lib/python3/dist-packages/dulwich ] || want python3-dulwich
	have node || want nodejs
	have npm || want npm
	have javac || want default-jdk-headless
	[ -e /usr/share/java/org.eclipse.jgit.jar ] || want libjgit-java
	[ -e /usr/include/git2.h ] || want libgit2-dev
	have chromium || want chromium # reads the page of the server
	have gcc || want gcc libc6-dev
fi
if [ "${1:-}" = cluster ]; then # a Kubernetes cluster of one node; its own programs are built
	{ have containerd && have ctr; } || want containerd
	have runc || want runc
	have etcd || want etcd-server
	have umoci || want umoci
	have busybox || want busybox-static
	[ -x /usr/lib/cni/ptp ] || want containernetworking-plugins
	have ip || want iproute2
fi
if [ "${1:-}" = race ]; then have gcc || want gcc libc6-dev; fi
[ -e /etc/ssl/certs/ca-certificates.crt ] || [ -e /etc/pki/tls/certs/ca-bundle.crt ] || [ -e /etc/ssl/cert.pem ] || want ca-certificates

if ! have "${GO:-go}"; then
	echo "setup: there is no go command; https://go.dev/dl has it" >&2
	exit 1
fi

if [ -n "$missing" ]; then
	sudo=
	if [ "$(id -u)" -ne 0 ]; then sudo=sudo; fi
	if ! have apt-get || { [ -n "$sudo" ] && ! have sudo; }; then
		echo "setup: please install:$missing (this needs apt-get, and root or sudo, to do it for you)" >&2
		exit 1
	fi
	echo "setup: installing$missing"
	$sudo apt-get update -qq
	# The ssh server is for tests, which start their own: installing it must not open a port of this machine.
	policy=/usr/sbin/policy-rc.d
	if ! [ -e $policy ]; then
		trap '$sudo rm -f $policy' EXIT
		trap 'exit 130' INT
		trap 'exit 143' TERM
		printf '#!/bin/sh\nexit 101\n' | $sudo tee $policy >/dev/null
		$sudo chmod 755 $policy
	fi
	status=0
	# shellcheck disable=SC2086 # words on purpose
	$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null || status=$?
	if [ $status -ne 0 ]; then
		echo "setup: apt-get install$missing failed with status $status" >&2
		exit 1
	fi
fi

if ! [ -r /dev/fuse ] || ! [ -w /dev/fuse ]; then
	echo "setup: /dev/fuse is missing or closed to you: nothing can be mounted (modprobe fuse; in a container: --device /dev/fuse --cap-add SYS_ADMIN)" >&2
fi
