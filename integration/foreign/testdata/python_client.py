"""Calls every operation by the client for Python. The directory of the test is clients."""

import os
import subprocess
import sys
import tempfile
import threading
import typing
from pathlib import Path

sys.path.insert(0, str(Path.cwd() / "python"))
import artifactfs_client  # noqa: E402
from artifactfs_client import ApiError, Artifacts, paginate  # noqa: E402

SERVER, TOKEN = os.environ["ARTIFACTFS_SERVER"], os.environ["ARTIFACTFS_SERVER_TOKEN"]
missing = {name for name, value in vars(Artifacts).items() if callable(value) and not name.startswith("_")}


class Api(Artifacts):
    """Notes which operations were called."""

    def __getattribute__(self, name):
        missing.discard(name)
        return super().__getattribute__(name)


def refused(status, code, call, *args, **query):
    try:
        call(*args, **query)
    except ApiError as e:
        assert e.status in (status if isinstance(status, tuple) else (status,)), e
        assert code is None or e.code == code, (e, e.errors)
        return
    raise AssertionError(f"{call.__name__} succeeded")


def first(events, into):
    for event in events:
        into.append(event)
        return


api = Api(SERVER, TOKEN)

# Namespaces and repositories.
assert len(api.account) == 32
assert api.accounts_list().result[0]["id"] == api.account
assert api.namespaces_create({"namespace": "team", "jurisdiction": "eu"})["jurisdiction"] == "eu"
refused(409, 10201, api.namespaces_create, {"namespace": "team"})
api.namespaces_create({"namespace": "other"})
assert [n["namespace"] for n in paginate(api.namespaces_list, limit=1)] == ["other", "team"]
api.namespaces_delete("other")
refused(404, 10200, api.namespaces_get, "other")
app = api.repos_create("team", {"name": "app", "description": 'ä "quoted" / name'})
for i in range(4):
    api.repos_create("team", {"name": f"r{i}", "read_only": i % 2 == 1})
assert api.namespaces_get("team")["repo_count"] == 5
assert [r["name"] for r in paginate(api.repos_list, "team", limit=2, sort="name", direction="asc")] == ["app", "r0", "r1", "r2", "r3"]
assert len(list(paginate(api.repos_list, "team", limit=2, page=1, search="R"))) == 4
assert api.repos_get("team", "app")["description"] == 'ä "quoted" / name'
assert api.repos_delete("team", "r0")["id"]
refused(404, 10200, api.repos_get, "team", "r0")
refused(400, 10100, api.repos_import, "team", "bad", {"url": "http://127.0.0.1/x.git"})
refused((404, 501), None, api.import_get, "team", "app")
refused((404, 501), None, api.import_refresh, "team", "app")

# Events arrive while the test pushes.
events, threads = [], []
for stream in (
    api.events_stream(type="pushed", after=0),
    api.namespace_events_stream("team", type="pushed", after=0),
    api.repo_events_stream("team", "app", type="pushed", after=0),
):
    threads.append(threading.Thread(target=first, args=(stream, events), daemon=True))
    threads[-1].start()

# Contents.
directory = tempfile.mkdtemp(prefix="client-")


def git(*args):
    return subprocess.run(["git", "-C", directory, *args], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


name, file = "a b ä.txt", Path(directory, "a b ä.txt")
git("init", "-q", "-b", "main")
file.write_text("one\n")
git("add", ".")
git("commit", "-q", "-m", "one")
file.write_text("two\n")
git("commit", "-q", "-am", "two")
git("branch", "feature/x")
secret = app["token"].split("?")[0]
git("push", "-q", app["remote"].replace("://", f"://x:{secret}@"), "main", "feature/x")
for thread in threads:
    thread.join(30)
assert [e["type"] for e in events] == ["cf.artifacts.repo.pushed"] * 3, events
assert all(e["source"]["repoName"] == "app" and len(e["payload"]["after"]) == 40 for e in events)
head, tree, blob = git("rev-parse", "HEAD"), git("rev-parse", "HEAD^{tree}"), git("rev-parse", "HEAD:" + name)
log = api.repos_log_get("team", "app", ref="main", limit=10)
assert [c["message"] for c in log] == ["two", "one"]
assert api.repos_log_get("team", "app", offset=1) == log[1:]
assert api.repos_commit_get("team", "app", head)["treeHash"] == tree
assert [(e["name"], e["type"], e["hash"]) for e in api.repos_tree_get("team", "app", tree)] == [(name, "blob", blob)]
assert api.repos_blob_get("team", "app", blob) == b"two\n"
assert api.repos_file_get("team", "app", ref="main", path=name) == b"two\n"
assert api.repos_raw_get("team", "app", "feature/x", name) == b"two\n"
refused(404, 10200, api.repos_file_get, "team", "app", ref="main", path="none")
assert [r["name"] for r in paginate(api.refs_list, "team", "app", prefix="refs/heads/", limit=1)] == ["refs/heads/feature/x", "refs/heads/main"]
diff = api.diff_get("team", "app", base=log[1]["hash"], head="main", patch=True)
assert diff["changes"][0]["path"] == name and "+two" in diff["patch"]
fork = api.repos_fork("team", "app", {"name": "fork", "commit": log[1]["hash"]})
assert api.repos_file_get("team", fork["name"], ref="main", path=name) == b"one\n"

# Sessions.
subprocess.run(["sh", os.environ["MAKE_SESSION"], directory], check=True)
git("push", "-q", app["remote"].replace("://", f"://x:{secret}@"), "refs/afs/*:refs/afs/*")
work = ("team", "app", "work")
assert [s["name"] for s in paginate(api.sessions_list, "team", "app", limit=1)] == ["work"]
assert api.sessions_get(*work)["state"] == "paused"
refused(404, 10200, api.sessions_get, "team", "app", "none")
assert api.sessions_change(*work, {"title": "Work", "add_tags": ["x"]})["title"] == "Work"
points = api.sessions_checkpoints_list(*work).result
assert [p["head"] for p in points] == [git("rev-parse", "work")]
assert api.sessions_pins_set(*work, "good")["checkpoint"] == points[0]["id"]
api.sessions_pins_remove(*work, "good")
thread = api.sessions_annotations_create(*work, {"path": "c", "line": 1, "text": "why?"})["thread"]
assert api.sessions_annotations_list(*work).result[0]["now"]["state"] == "same" and thread["on"]["quote"] == "three"
compared = api.compare("team", "app", p=["work@", "main"])
assert [(s["name"], s["added"]) for s in compared["sides"]] == [("work@", 1), ("main", 0)] and compared["shared"] == []
asked = api.sessions_approvals_create(*work, {"action": "merge", "branch": "main"})
assert api.sessions_approvals_list(*work).result[0]["status"] == "open"
for answer, status in (("deny", "denied"), ("grant", "open"), ("withdraw", "withdrawn")):
    assert getattr(api, "sessions_approvals_" + answer)(*work, asked["id"], {"text": "x"})["status"] == status
assert api.policy_get("team", "app")["policy"] is None
rules = api.policy_set("team", "app", {"policy": {"version": 1}, "expect": ""})
refused(409, 10901, api.policy_set, "team", "app", {"policy": {"version": 1}, "expect": ""})
assert rules["policy"] == {"version": 1}
assert api.sessions_merge(*work, {"branch": "main"})["after"] == git("rev-parse", "work")
value = bytes([0, 255, 10])
entry = api.cache_value_set("team", "app", value, key="k/1", expect="none")
assert api.cache_value_get("team", "app", key="k/1") == value
assert api.cache_get("team", "app", key="k/1")["sha256"] == entry["sha256"]
assert [e["key"] for e in paginate(api.cache_list, "team", "app")] == ["k/1"]
refused(409, 10901, api.cache_value_set, "team", "app", value, key="k/1", expect="none")
api.cache_delete("team", "app", key="k/1", expect=entry["sha256"])
assert api.archive("team", "app", {"sessions": ["work"]})
assert [s["session"] for s in api.archive_list("team", "app").result] == ["work"]
assert api.archive_reopen("team", "app", "work")
assert api.sessions_get(*work)["title"] == "Work"
api.retention_set("team", {"version": 1, "rules": [{"delete_after": "30d"}]})
assert api.retention_get("team")["version"] == 1
assert api.retention_plan("team") and api.retention_run("team")
api.retention_delete("team")
assert api.sessions_delete(*work)["refs"] > 0

# Tokens.
made = api.tokens_create("team", {"repo": "app", "scope": "read", "ttl": 60, "label": "test", "refs": [["refs/heads/**", ["no-delete"]]]})
rotated = api.tokens_rotate("team", made["id"])
assert rotated["plaintext"] != made["plaintext"]
assert api.tokens_revoke("team", rotated["id"])["id"] == rotated["id"]
assert {t["id"] for t in paginate(api.repo_tokens_list, "team", "app", state="revoked", per_page=1)} == {made["id"], rotated["id"]}
refused(400, 10103, api.tokens_create, "team", {"repo": "app", "ttl": 5})
owner = api.control_tokens_create({"role": "owner", "namespace": "team", "scope": "read", "label": "owner"})
owned = Artifacts(SERVER, owner["plaintext"])
assert owned.repos_get("team", "app")["id"] == app["id"]
refused(403, None, owned.repos_delete, "team", "app")
following = api.control_tokens_rotate(owner["id"])
refused((401, 403), None, owned.repos_get, "team", "app")
api.control_tokens_revoke(following["id"])
assert any(t["id"] == following["id"] and t["state"] == "revoked" for t in api.control_tokens_list(state="all").result)
refused((401, 403), None, Artifacts(SERVER, "wrong").accounts_list)

# Webhooks, usage, audit.
for kind, place in (("account", []), ("namespace", ["team"])):
    hooks = {verb: getattr(api, f"{kind}_webhooks_{verb}") for verb in ("list", "create", "delete", "dead_list", "dead_retry")}
    hook = hooks["create"](*place, {"url": "http://127.0.0.1:1/hook", "types": ["cf.artifacts.repo.deleted"]})
    assert len(hook["secret"]) >= 16
    assert any(h["id"] == hook["id"] and "secret" not in h for h in hooks["list"](*place).result)
    assert hooks["dead_list"](*place, hook["id"]).result == []
    refused(404, 10200, hooks["dead_retry"], *place, hook["id"], 1)
    hooks["delete"](*place, hook["id"])
assert api.repo_usage_get("team", "app")["stored"]["own"] >= 0
assert isinstance(api.namespace_usage_get("team", first="2026-01-01")["operations"], list)
entries = list(api.audit_export(limit=1000))
assert any(e["method"] == "POST" and e["target"].endswith("/fork") and e["result"] == 201 for e in entries)
assert secret not in str(entries), "the audit log contains a token"
assert api.openapi_get()["openapi"] == "3.1.1"
assert api.health_get() == api.ready_get() == "ok\n"
assert api.metrics_get().startswith("# HELP ")

# Annotations name types that exist.
for name, value in vars(artifactfs_client).items():
    if isinstance(value, type) and value.__module__ == artifactfs_client.__name__:
        typing.get_type_hints(value)
        for method in vars(value).values():
            if callable(method):
                typing.get_type_hints(method)

assert not missing, missing
print("every operation was called")
