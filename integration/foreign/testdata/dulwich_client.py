"""A small command line for dulwich: clone, commit, push, fetch and show. The tests describe its arguments (suite_test.go)."""

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from dulwich import porcelain
from dulwich.client import HttpGitClient, default_urllib3_manager
from dulwich.repo import Repo

TOKEN, AUTH = os.environ.get("AFS_TOKEN", ""), os.environ.get("AFS_AUTH")


def connect(url):
    parts = urlsplit(url)
    base = f"{parts.scheme}://{parts.netloc}"
    if AUTH == "basic":
        return HttpGitClient(base, username="x", password=TOKEN), parts.path
    manager = default_urllib3_manager(None)
    if AUTH == "bearer":
        manager.headers["Authorization"] = "Bearer " + TOKEN
    return HttpGitClient(base, pool_manager=manager), parts.path


def remote(repo):
    return connect(repo.get_config().get(("remote", "origin"), "url").decode())


def clone(url, directory, depth=None):
    client, path = connect(url)
    client.clone(path, directory, mkdir=True, origin="origin", checkout=True, depth=int(depth) if depth else None)


def commit(directory, name, text):
    Path(directory, name).write_text(text)
    porcelain.add(directory, [str(Path(directory, name))])
    who = b"foreign <foreign@localhost>"
    print(porcelain.commit(directory, f"change {name}\n".encode(), author=who, committer=who).decode())


def push(directory, source, target, force=""):
    repo = Repo(directory)
    client, path = remote(repo)
    name = b"refs/heads/" + target.encode()
    new = repo.refs[b"refs/heads/" + source.encode()] if source else b"0" * 40

    def update(refs):
        old = refs.get(name)
        if old and source and force != "force" and old not in {e.commit.id for e in repo.get_walker(include=[new])}:
            raise SystemExit("not a fast-forward")
        return {name: new}

    result = client.send_pack(path, update, repo.generate_pack_data)
    failed = {k.decode(): v for k, v in (result.ref_status or {}).items() if v}
    if failed:
        raise SystemExit(f"refused: {failed}")


def fetch(directory):
    repo = Repo(directory)
    client, path = remote(repo)
    result = client.fetch(path, repo)
    repo.refs.import_refs(b"refs/remotes/origin", {k[11:]: v for k, v in result.refs.items() if k.startswith(b"refs/heads/")})
    print(repo.refs[b"refs/remotes/origin/main"].decode())


def show(directory, revision, path):
    repo = Repo(directory)
    tree = repo[repo[revision.encode()].tree]
    _, blob = tree.lookup_path(repo.__getitem__, path.encode())
    sys.stdout.buffer.write(repo[blob].data)


try:
    {"clone": clone, "commit": commit, "push": push, "fetch": fetch, "show": show}[sys.argv[1]](*sys.argv[2:])
except Exception as e:
    sys.exit(f"{type(e).__name__}: {e}")
