package integration

import (
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/server/client"
)

// journeySteps are the steps of a journey in their order. The result of a step is its cell in the table.
var journeySteps = []struct {
	name string
	do   func(j *journey) string
}{
	{"mount", (*journey).mounts},
	{"prompt", (*journey).records},
	{"commit and push", (*journey).pushes},
	{"policy", (*journey).protects},
	{"checkpoint", (*journey).saves},
	{"request approval", (*journey).asks},
	{"kill -9", (*journey).dies},
	{"resume elsewhere", (*journey).resumes},
	{"fork by a link", (*journey).forks},
	{"compare", (*journey).compares},
	{"comment", (*journey).comments},
	{"grant", (*journey).grants},
	{"promote", (*journey).promotes},
	{"merge", (*journey).merges},
	{"page", (*journey).shows},
	{"retention", (*journey).retains},
	{"delete", (*journey).deletes},
	{"undelete", (*journey).undeletes},
	{"first host again", (*journey).returns},
}

const (
	isOK        = "ok"
	prompt      = "Change the first file"
	comment     = "is this line needed?"
	firstCommit = `echo first >>d0000/f0000.txt && git mv d0001/f0000.txt d0001/moved.txt && git rm -q d0001/f0001.txt && mkdir -p new/deep &&
		printf '#!/bin/sh\n' >new/deep/run && chmod +x new/deep/run && ln -s nowhere link && git add -A && git commit -qm first`
	secondCommit = `echo second >>d0000/f0001.txt && echo "ünï cödé" >'a name with "quotes" é' && git add -A && git commit -qm second &&
		git branch side HEAD~1 && git tag -am annotated t1 && echo stashed >>d0002/f0000.txt && git stash -q`
)

// same checks that a working tree has the state of the last step.
func (j *journey) same(what string, m mounted) {
	j.Helper()
	m.w.same(what, j.state, m.w.look(m.Dir))
}

// main returns a clone of the mounted branch by stock git, the oracle.
func (j *journey) main(name string, flags ...string) string {
	j.Helper()
	dir := j.dir(name)
	j.first.git(j.first.root, append(append([]string{"clone", "--quiet", "--branch", "main"}, flags...), j.plain, dir)...)
	return dir
}

// wantMain checks that the mounted branch has the commits of a mount.
func (j *journey) wantMain(name string, m mounted) {
	j.Helper()
	clone := j.main(name, "--bare")
	const format = "--format=%H %T %an %s"
	if got, want := j.first.git(clone, "log", format), m.w.git(m.Dir, "log", format); got != want {
		j.Errorf("log of a clone of the mounted branch: got\n%s\nwant\n%s", got, want)
	}
	j.first.sound(clone)
}

// mountAs mounts as the command of the page for users does.
func (j *journey) mountAs(w *world, name string) (mounted, string) {
	j.Helper()
	return w.mountAt(j.remote, j.dir(name), append(slices.Clone(j.flags), "--session", "work", "--wait", "git")...)
}

func (j *journey) mounts() string {
	j.work, _ = j.mountAs(j.first, "work")
	clone := j.main("clone")
	j.state = j.first.look(j.work.Dir)
	if want := j.first.git(clone, "rev-parse", "HEAD^{tree}"); j.state.Tree != want || len(j.state.Status) > 0 {
		j.Errorf("mount: got tree %s, status %q, want %s of a clone", j.state.Tree, j.state.Status, want)
	}
	j.first.sh(j.work.Dir, "diff -r --exclude=.git . "+clone)
	return isOK
}

func (j *journey) records() string {
	j.work.record(`{"type":"prompt","role":"user","text":"` + prompt + `"}`)
	return isOK
}

func (j *journey) pushes() string {
	j.first.sh(j.work.Dir, firstCommit)
	j.first.sh(j.work.Dir, "git push -q origin HEAD:main")
	j.wantMain("pushed", j.work)
	if got := j.first.sh(j.work.Dir, "git status -sb"); got != "## main...origin/main" {
		j.Errorf("status after the push: got %q", got)
	}
	return isOK
}

func (j *journey) protects() string {
	file := j.dir("policy.json")
	check(j.T, os.WriteFile(file, []byte(`{"version":1,"branches":[{"match":"main","quorum":1}]}`), 0o600))
	remote := j.plain
	if j.hosted {
		remote = appURL(j.first)
	}
	j.first.ok("session", "policy", "--set", file, "--remote", remote)
	return isOK
}

func (j *journey) saves() string {
	j.first.sh(j.work.Dir, secondCommit)
	p := j.work.checkpoint("--sync", "-m", "ready")
	j.state = j.first.look(j.work.Dir)
	if p.Tree != j.state.Tree || !p.Synced || len(j.state.Status) > 0 || len(j.state.Stashes) != 1 {
		j.Errorf("checkpoint: got %+v, want the tree of %+v", p, j.state)
	}
	if got := j.second.pointsAt(j.saved, "work"); len(got) == 0 || !strings.HasPrefix(got[0], p.ID+" "+p.Tree) {
		j.Errorf("checkpoints on the session remote: got %q, want the newest to be %s", got, p.ID)
	}
	return isOK
}

func (j *journey) asks() string {
	var asked control.SessionApproveReply
	j.first.as("agent").json(&asked, "session", "review", "request", "-C", j.work.Dir, "--for", "promote",
		"--reviewers", "alice")
	head := j.first.git(j.work.Dir, "rev-parse", "HEAD^{tree}")
	if a := asked.Approval; a.Tree != head || a.Status != "open" || asked.Changes.Added != 1 {
		j.Errorf("request: got %+v, want the tree %s", asked, head)
	}
	j.link, j.to = asked.Link, asked.To
	j.wantStatus(j.first, "open")
	return isOK
}

// wantStatus checks the status of the request for an approval, as a host without a mount sees it.
func (j *journey) wantStatus(w *world, want string) {
	j.Helper()
	var list control.SessionApprovalsReply
	args := []string{"session", "review", "list", j.saved + "#session=work"}
	if j.to != "" {
		args = append(args, "--to", j.to)
	}
	w.json(&list, args...)
	if len(list.Approvals) != 1 || list.Approvals[0].Status != want {
		j.Errorf("approvals: got %+v, want one that is %s", list.Approvals, want)
	}
}

func (j *journey) dies() string {
	alone := *j.first // without the server
	alone.root = j.first.state
	alone.killDaemon()
	j.first.umount(j.work.Dir)
	return isOK
}

func (j *journey) resumes() string {
	j.again = mounted{w: j.second}
	j.second.json(&j.again.MountReply, "session", "resume", "work", j.dir("again"), "--session-remote", j.saved,
		"--take-over",
		"--wait", "git")
	j.same("resumed", j.again)
	if got := j.second.records(j.again.Dir); len(got) != 1 || !strings.Contains(string(got[0].Record), prompt) {
		j.Errorf("transcript: got %+v", got)
	}
	j.wantStatus(j.second, "open")
	return isOK
}

func (j *journey) forks() string {
	link := strings.TrimSpace(j.second.ok("session", "link", "-C", j.again.Dir))
	j.fork = mounted{w: j.first}
	j.first.json(&j.fork.MountReply, "session", "fork", link, j.dir("fork"), "--session", "try", "--wait", "git")
	const log = "git log --format=%H%T && git status --short"
	if got, want := j.first.sh(j.fork.Dir, log), j.second.sh(j.again.Dir, log); got != want {
		j.Errorf("log and status of the fork: got\n%s\nwant\n%s", got, want)
	}
	j.first.sh(j.fork.Dir, "echo tried >tried && git add -A && git commit -qm tried")
	j.fork.checkpoint("--sync")
	return isOK
}

func (j *journey) compares() string {
	var reply control.SessionCompareReply
	j.second.json(&reply, "session", "compare", "work", "try", "--session-remote", j.saved)
	if len(reply.Sides) != 2 || len(reply.Shared) != 0 {
		j.Fatalf("compare: got %+v", reply)
	}
	work, try := reply.Sides[0], reply.Sides[1]
	if work.Added+work.Modified+work.Removed != 0 || try.Added != 1 || try.LinesAdded != 1 ||
		try.Modified+try.Removed != 0 {
		j.Errorf("compare: got %+v and %+v, want one new file of the fork", work, try)
	}
	return isOK
}

// reviewer returns the first host with the only token that a reviewer has, for a repository of the server.
func (j *journey) reviewer(repository string) *world {
	j.Helper()
	w := j.first.as("alice")
	if repository == "" {
		return w
	}
	made := must[client.NewToken](j.T)(j.api.CreateToken(j.Context(), "team",
		client.CreateToken{Repo: repository, Scope: client.Write,
			Actor: "alice", TTL: 600}))
	w.env = slices.DeleteFunc(w.env, func(v string) bool { return strings.HasPrefix(v, "ARTIFACTFS_SERVER") })
	w.env = append(w.env, "ARTIFACTFS_TOKEN="+made.Plaintext)
	return w
}

func (j *journey) comments() string {
	alice := j.reviewer(j.space)
	thread := strings.TrimSpace(alice.ok("session", "annotate", j.saved+"#session=work", "--path", "d0000/f0001.txt:2",
		"-m", comment))
	j.second.ok("session", "annotate", "-C", j.again.Dir, "--reply", thread, "-m", "yes")
	for what, args := range map[string][]string{"mount": {"-C", j.again.Dir}, "link": {j.saved + "#session=work"}} {
		var reply control.SessionAnnotationsReply
		j.second.json(&reply, append([]string{"session", "annotations"}, args...)...)
		if all := reply.Threads; len(all) != 1 || len(all[0].Annotations) != 2 || all[0].Now == nil ||
			all[0].Now.State != "same" {
			j.Errorf("annotations by %s: got %+v", what, reply)
		}
	}
	return isOK
}

func (j *journey) grants() string {
	repository := ""
	if j.hosted {
		if repository = j.space; j.space != "app" {
			repository = ""
			j.documented("server-review.md", "another private repository than `app`, as with `--create=both`, reviewers")
		}
		refused := j.second.afs("session", "promote", "-C", j.again.Dir)
		if refused.code != control.ExitRemote || !strings.Contains(refused.stderr, "main is protected") {
			j.Errorf("promote without an approval: got %s", refused)
		}
	}
	args := []string{"session", "review", "grant", j.link, "-m", "fine"}
	if j.to != "" {
		args = append(args, "--to", j.to)
	}
	var granted control.SessionApproveReply
	j.reviewer(repository).json(&granted, args...)
	if granted.Approval.Status != "granted" || granted.Actor != "alice" {
		j.Errorf("grant: got %+v", granted)
	}
	j.wantStatus(j.second, "granted")
	return isOK
}

func (j *journey) promotes() string {
	j.second.ok("session", "promote", "-C", j.again.Dir)
	j.wantMain("promoted", j.again)
	return isOK
}

func (j *journey) merges() string {
	j.second.ok("session", "merge", j.saved+"#session=try", "-C", j.again.Dir)
	j.second.sh(j.again.Dir, "git commit -qm merged")
	if got, want := j.second.git(j.again.Dir, "rev-parse", "HEAD^{tree}"),
		j.first.git(j.fork.Dir, "rev-parse", "HEAD^{tree}"); got != want {
		j.Errorf("tree after the merge: got %s, want that of the fork, %s", got, want)
	}
	j.again.checkpoint("--sync", "-m", "merged")
	j.state = j.second.look(j.again.Dir)
	return isOK
}

func (j *journey) shows() string {
	if j.space == "" {
		j.documented("server-review.md", "Open the address of the server in a browser")
		return "no server"
	}
	made := must[client.NewToken](j.T)(j.api.CreateToken(j.Context(), "team",
		client.CreateToken{Repo: j.space, Scope: "read"}))
	p := pageOf{j.T, j.url, made.Plaintext}
	at := "/ui/team/" + j.space
	p.wants(at, `href="`+at+`/s/work"`, `href="`+at+`/s/try"`)
	p.wants(at+"/s/work", "ready", "merged", "first", "second", prompt, comment)
	p.wants(at+"/compare?p=work@&p=try@", "tried")
	p.wants(at+"/tree/work@/d0000/f0001.txt", "second", comment)
	return isOK
}

func (j *journey) retains() string {
	j.second.ok("session", "gc", "-C", j.again.Dir)
	j.first.unmount(j.fork)
	j.second.unmount(j.again)
	if j.space == "" {
		j.documented("using-sessions.md",
			"only the [retention](server-operating.md#retention) of `artifactfs serve` does something about it")
		return "gc only"
	}
	file := j.dir("rules.json")
	const rules = `{"version":1,"rules":[{"session":"try","archive_after":"0s"},{"session":"work","close_after":"0s"}]}`
	check(j.T, os.WriteFile(file, []byte(rules), 0o600))
	j.first.ok("namespace", "retention", "team", "--set", file)
	j.first.ok("namespace", "retention", "team", "--run")
	if got := j.states(); got != "map[try:archived work:closed]" {
		j.Errorf("sessions after the retention: got %s", got)
	}
	j.first.ok("namespace", "retention", "team", "--remove")
	for _, name := range []string{"work", "try"} {
		j.first.ok("session", "reopen", j.saved+"#session="+name)
	}
	return isOK
}

// states returns the states of the sessions on the session remote.
func (j *journey) states() string {
	j.Helper()
	var sessions control.SessionsReply
	j.first.json(&sessions, "session", "list", "--session-remote", j.saved)
	states := map[string]string{}
	for _, s := range sessions.Sessions {
		states[s.Name] = s.State
	}
	return fmt.Sprint(states)
}

func (j *journey) deletes() string {
	j.second.ok("session", "delete", "work", "--yes")
	if got := j.states(); strings.Contains(got, "work") || !strings.Contains(got, "try") {
		j.Errorf("sessions after the deletion: got %s", got)
	}
	var trash control.SessionTrashReply
	j.first.json(&trash, "session", "list", "--deleted", "--session-remote", j.saved)
	if len(trash.Deleted) != 1 || trash.Deleted[0].Name != "work" {
		j.Errorf("deleted sessions: got %+v", trash)
	}
	return isOK
}

func (j *journey) undeletes() string {
	j.second.ok("session", "undelete", "work")
	j.again, _ = j.mountAs(j.second, "again")
	j.same("after the deletion was undone", j.again)
	j.again.sync()
	j.second.unmount(j.again)
	return isOK
}

// returns mounts the session on the host that was killed. It shows the files that this host had, and says how to mount
// the newest ones.
func (j *journey) returns() string {
	m, said := j.mountAs(j.first, "work")
	_, after, _ := strings.Cut(said, "artifactfs session fork ")
	newest, _, _ := strings.Cut(after, " DIR to mount the newest ones")
	remote := j.saved
	if u, err := url.Parse(remote); err == nil && u.User != nil {
		if _, secret := u.User.Password(); secret {
			u.User = nil
			remote = u.String()
		}
	}
	want := control.ShellWord(remote + "#session=work")
	if strings.Contains(said, "session remote has not answered") {
		// On a busy machine the session remote has not answered in the time for which a mount waits. Then the status says
		// what it has answered.
		j.first.until("the status says who has continued the session", func() bool {
			return strings.Contains(j.first.ok("status", m.Dir), "took over session work")
		})
		newest = want
	}
	if newest != want && !(j.embedded && strings.HasPrefix(newest, "work@")) {
		j.Fatalf("mount on the first host said %q, want a fork of %s", said, want)
	}
	of := mounted{w: j.first}
	j.first.json(&of.MountReply, "session", "fork", strings.Trim(newest, "'"), j.dir("newest"), "--session", "newest",
		"--wait", "git")
	j.same("newest state on the first host", of)
	j.first.unmount(of)
	j.first.unmount(m)
	j.documented("using-sessions.md", "If the first machine mounts the session again, it shows the files that it had")
	return "own files"
}

// documented checks that a page of the documents has a sentence, which says why a step does not have the same result
// everywhere.
func (j *journey) documented(page, sentence string) {
	j.Helper()
	text := strings.Join(strings.Fields(string(must[[]byte](j.T)(os.ReadFile("../doc/"+page)))), " ")
	if !strings.Contains(text, sentence) {
		j.Errorf("doc/%s lacks %q", page, sentence)
	}
}
