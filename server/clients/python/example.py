"""Opens a session, mounts it, commits, and forks the result:

    artifactfs serve
    ARTIFACTFS_SERVER=http://127.0.0.1:8790 ARTIFACTFS_SERVER_TOKEN=afs_admin_... python3 example.py

It needs the program artifactfs and git, and FUSE.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

from artifactfs_client import Artifacts

NAMESPACE = "example"
HELPER = '!f() { test "$1" = get && echo username=x && echo "password=$ARTIFACTFS_TOKEN"; }; f'


def run(*command: str | Path, cwd: Path | None = None, token: str | None = None) -> str:
    # The token of the server stays in this process; programs get only that of the repository.
    env = {k: v for k, v in os.environ.items() if k != "ARTIFACTFS_SERVER_TOKEN"}
    if token:
        env["ARTIFACTFS_TOKEN"] = token
    return subprocess.run(command, cwd=cwd, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def main(directory: Path) -> None:
    api = Artifacts(os.environ["ARTIFACTFS_SERVER"], os.environ["ARTIFACTFS_SERVER_TOKEN"])
    session = f"agent-{time.time_ns():x}"

    # A repository with one commit, pushed by stock git.
    repo = api.repos_create(NAMESPACE, {"name": session, "description": "made by example.py"})
    branch, seed, mount = repo["default_branch"], directory / "seed", directory / "mount"
    run("git", "init", "-q", "-b", branch, seed)
    (seed / "README.md").write_text("# An example\n")
    run("git", "add", ".", cwd=seed)
    run("git", "commit", "-q", "-m", "begin", cwd=seed)
    run("git", "-c", "credential.helper=" + HELPER, "push", "-q", repo["remote"], branch, cwd=seed, token=repo["token"])
    print(f"created {NAMESPACE}/{repo['name']}: {repo['remote']}")

    # A session in it, with a token that may change the refs of this session only.
    token = api.tokens_create(NAMESPACE, {"repo": repo["name"], "session": session, "label": "example", "ttl": 3600})
    run("artifactfs", "mount", repo["remote"], mount, "--session", session, "--session-remote", "origin", "--wait", "git",
        token=token["plaintext"])
    try:
        with (mount / "README.md").open("a") as f:
            f.write("Written in a mount.\n")
        run("git", "commit", "-q", "-am", "work of the session", cwd=mount)
        run("artifactfs", "sync", mount)
        commit = run("git", "rev-parse", "HEAD", cwd=mount)
        print(f"committed {commit} in session {session}")

        # A fork that begins at this commit.
        fork = api.repos_fork(NAMESPACE, repo["name"], {"name": session + "-fork", "commit": commit})
        text = api.repos_file_get(NAMESPACE, fork["name"], ref=fork["default_branch"], path="README.md").decode()
        print(f"forked {NAMESPACE}/{fork['name']}: README.md is\n{text}")
    finally:
        run("artifactfs", "unmount", mount)
        api.tokens_revoke(NAMESPACE, token["id"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="artifactfs-example-") as created:
        main(Path(created))
