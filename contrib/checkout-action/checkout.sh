#!/bin/sh
# Mounts the repository of a job at its workspace (checkout.sh main), and unmounts it at the end of the job (checkout.sh post).
# It uses the variables of a GitHub Actions runner: INPUT_*, GITHUB_* and, in post, STATE_*.
set -eu

# fail CAUSE prints an error, which the runner shows at the step. A line break would end it.
fail() {
	printf '::error title=artifactfs checkout::%s\n' "$(printf %s "$*" | tr '\r\n' '  ')"
	exit 1
}

# input NAME prints an input of the action. In NAME, hyphens are underscores (see step.js).
input() {
	printenv "INPUT_$1" || true
}

# pass FILE NAME VALUE writes a line for the runner into one of its files.
pass() {
	case $3 in
	*"
"*) fail "$2 contains a line break" ;;
	esac
	printf '%s=%s\n' "$2" "$3" >>"$1"
}

mount_workspace() {
	program=$(input PROGRAM)
	program=${program:-artifactfs}
	command -v "$program" >/dev/null || fail "$program is not installed on this runner"
	[ -n "${GITHUB_WORKSPACE:-}" ] || fail "GITHUB_WORKSPACE is not set"
	repository=$(input REPOSITORY)
	repository=${repository:-${GITHUB_REPOSITORY:-}}
	case $repository in
	'' | -* | */-* | *[!A-Za-z0-9._/-]* | *..*) fail "invalid repository: $repository" ;;
	*/*) ;;
	*) fail "invalid repository: $repository, want OWNER/NAME" ;;
	esac
	path=$(input PATH)
	workspace=$(realpath -m -- "$GITHUB_WORKSPACE")
	dir=$(realpath -m -- "$workspace/${path:-.}")
	case $dir/ in
	"$workspace"/*) ;;
	*) fail "path $path is outside of the workspace" ;;
	esac
	ref=$(input REF)
	if [ -z "$ref" ] && [ "$repository" = "${GITHUB_REPOSITORY:-}" ]; then
		ref=${GITHUB_SHA:-}
	fi
	depth=$(input FETCH_DEPTH)
	if [ -n "$depth" ]; then
		echo "::notice title=artifactfs checkout::fetch-depth $depth is ignored: older commits are fetched in the background, without file contents"
	fi

	# The token is passed in the environment, so that it is in no argument and in no file.
	token=$(input TOKEN)
	if [ -n "$token" ]; then
		echo "::add-mask::$token"
		ARTIFACTFS_TOKEN=$token
		export ARTIFACTFS_TOKEN
	fi
	set -- --wait git
	prefetch=$(input PREFETCH)
	[ -z "$prefetch" ] || set -- "$@" --prefetch "$prefetch"
	[ -z "$ref" ] || set -- "$@" --ref "$ref"
	profile=$(input PROFILE)
	[ -z "$profile" ] || set -- "$@" --profile "$profile"
	from=$(input STORE_FROM)
	[ -z "$from" ] || set -- "$@" --store-from "$from"
	session=
	if [ "$(input READ_ONLY)" = true ]; then
		set -- "$@" --read-only
	else
		# Each attempt of a job has a session of its own: a session of an earlier run would show the changes of that run.
		sum=$(printf %s "$dir" | cksum | cut -d' ' -f1)
		session=$(printf 'ci-%s-%s-%s-%s' "${GITHUB_RUN_ID:-0}" "${GITHUB_RUN_ATTEMPT:-1}" "${GITHUB_JOB:-job}" "$sum" | tr -c 'A-Za-z0-9._-' - | cut -c1-128)
		set -- "$@" --session "$session"
	fi
	"$program" mount "${GITHUB_SERVER_URL:-https://github.com}/$repository" "$dir" "$@" || fail "$repository cannot be mounted at $dir (see above)"
	unset ARTIFACTFS_TOKEN

	# From here on, the end of the job has to unmount, even if this step fails.
	pass "$GITHUB_STATE" dir "$dir"
	pass "$GITHUB_STATE" program "$program"
	commit=$(git -C "$dir" rev-parse HEAD)
	pass "$GITHUB_OUTPUT" commit "$commit"
	pass "$GITHUB_OUTPUT" dir "$dir"
	pass "$GITHUB_OUTPUT" session "$session"
}

unmount_workspace() {
	[ -n "${STATE_dir:-}" ] || exit 0 # nothing was mounted
	cd / # this process must not use the mount
	set -- --timeout 0
	if [ "$(input KEEP)" = false ]; then
		set -- --discard --yes
	fi
	# Processes that a step has left running do not keep the mount.
	"${STATE_program:-artifactfs}" unmount "$STATE_dir" --detach "$@" || {
		status=$?
		[ "$status" = 5 ] || fail "$STATE_dir cannot be unmounted (see above)" # 5: not pushed, which was not requested
	}
}

case ${1:-} in
main) mount_workspace ;;
post) unmount_workspace ;;
*) fail "usage: checkout.sh main|post" ;;
esac
