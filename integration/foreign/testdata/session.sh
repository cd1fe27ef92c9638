#!/bin/sh
# Adds the session work to the git repository in the directory $1, with a checkpoint whose HEAD is a commit after the branch main.
set -eu
cd "$1"
base=$(git rev-parse main)
git checkout -q -b work main
echo three >c
git add c
git commit -q -m three
git checkout -q main
head=$(git rev-parse work)
point=$(git commit-tree -p "$head" "$head^{tree}" <<EOF
checkpoint: idle

Afs-Checkpoint: 01M80Q4Z50EZKC5YR3HTMPRYYQ
Afs-Session: work
Afs-Lane: main
Afs-Segment: 1
Afs-Reason: idle
Afs-Base: $base
Afs-Head: $head
Afs-State: $head
EOF
)
git update-ref refs/afs/j/work/main/000001 "$point"
since=2026-11-20T08:00:00Z
meta=$(printf '{"version":1,"session":"work","remote":"","ref":"refs/heads/main","base":"%s","format":"sha1","began":"%s","state":"paused",
"lanes":[{"name":"main","writer":{},"since":"%s","segment":1,"left":"%s"}]}' "$base" $since $since $since | git hash-object -w --stdin)
history=$(printf '{"state":"paused","time":"%s","actor":"ann","reason":"unmounted"}\n' $since | git hash-object -w --stdin)
tree=$(printf '100644 blob %s\tsession.json\n100644 blob %s\ttransitions.jsonl\n' "$meta" "$history" | git mktree)
git update-ref refs/afs/meta/work "$(git commit-tree -m session "$tree")"
