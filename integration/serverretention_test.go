package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/server/client"
)

// remoteOf returns the URL of a repository of the server for git.
func remoteOf(c *cluster, name string) string { return c.proxy.url() + "/git/" + name + ".git" }

// pointsAt returns the ids and trees of the checkpoints of a session on its session remote, newest first.
func (w *world) pointsAt(remote, session string) (points []string) {
	w.Helper()
	var log control.SessionLogReply
	check2(w, json.Unmarshal([]byte(w.ok("session", "log", "-C", session, "--session-remote", remote, "--json")), &log))
	for _, p := range log.Checkpoints {
		points = append(points, p.ID+" "+p.Tree+" "+strings.Join(p.Pins, ","))
	}
	return points
}

// A session that is archived by a link leaves the repository of the server, survives garbage collection of the
// repository and a killed server, and comes back by a link with the same checkpoints and files.
func TestArchivedSession(t *testing.T) {
	t.Parallel()
	w, c, api := hosted(t)
	remote := remoteOf(c, "team/app")
	link := remote + "#session=work"
	m := w.bare("team/app", "--create", "--session", "work", "--wait", "git")
	w.sh(m.Dir, everything)
	m.checkpoint("--pin", "first")
	w.sh(m.Dir, "echo more >more && git add more && git commit -qm more")
	m.checkpoint("--sync")
	w.ok("session", "set", "work", "--title", "Fix the login", "--owner", "alice")
	m.sync()
	before := w.look(m.Dir)
	if r := w.afs("session", "archive", link); r.code == 0 {
		t.Error("a mounted session was archived")
	}
	w.unmount(m)
	points := w.pointsAt(remote, "work")
	refs := func() string {
		t.Helper()
		return must[string](t)(gitAs(t.Context(), w.root, c.token, "ls-remote", remote))
	}
	if all := refs(); !strings.Contains(all, "refs/heads/afs/work/topic") || !strings.Contains(all, "refs/afs/meta/work") {
		t.Fatalf("refs of the session: got %s", all)
	}
	w.ok("session", "archive", link, "-m", "finished")
	if all := refs(); strings.Contains(all, "/work") || !strings.Contains(all, "refs/afs/archived/_/") {
		t.Errorf("refs of an archived session: got %s", all)
	}
	if out := w.ok("repo", "archive", "team/app"); !strings.Contains(out, "work") ||
		!strings.Contains(out, "Fix the login") {
		t.Errorf("list of archived sessions: got %s", out)
	}
	// Neither stock git nor a copy of the session on another machine creates refs of an archived session.
	clone := w.place("clone")
	if _, err := gitAs(t.Context(), w.root, c.token, "clone", "--quiet", remote, clone); err != nil {
		t.Fatal(err)
	}
	token := must[client.NewToken](t)(api.CreateToken(t.Context(), "team",
		client.CreateToken{Repo: "app", Scope: client.Write})).Plaintext
	if _, err := gitAs(t.Context(), clone, token, "push", remote, "HEAD:refs/afs/meta/work"); err == nil ||
		!strings.Contains(err.Error(), "session work is archived") {
		t.Errorf("push of a ref of an archived session: got %v", err)
	}
	c.nodes[0].kill()
	check(t, c.nodes[0].restart())
	w.ok("session", "reopen", link, "-m", "again")
	if all := refs(); strings.Contains(all, "refs/afs/archived") || !strings.Contains(all, "refs/heads/afs/work/topic") {
		t.Errorf("refs of the reopened session: got %s", all)
	}
	if got := w.pointsAt(remote, "work"); strings.Join(got, "\n") != strings.Join(points, "\n") {
		t.Errorf("checkpoints of the reopened session: got %q, want %q", got, points)
	}
	o := w.elsewhere()
	again := o.bare("team/app", "--create", "--session", "work", "--wait", "git")
	w.same("resumed after the archive", before, o.look(again.Dir))
	o.unmount(again)
	if r := w.afs("session", "reopen", remote+"#session=none"); r.code != control.ExitNotMounted {
		t.Errorf("reopen a session that never existed: got %s", r)
	}
}

// While a session is on hold, neither commands nor stock git delete or shorten it, with any token; an owner releases
// the hold.
func TestHoldOnServer(t *testing.T) {
	t.Parallel()
	w, c, api := hosted(t)
	remote := remoteOf(c, "team/app")
	m := w.bare("team/app", "--create", "--session", "work", "--wait", "git")
	w.sh(m.Dir, "echo 1 >x")
	m.checkpoint("--sync")
	w.ok("session", "set", "-C", m.Dir, "--hold", "audit of March")
	m.sync()
	if r := w.afs("unmount", "--discard", "--yes", m.Dir); r.code == 0 || !strings.Contains(r.stderr, "audit of March") {
		t.Errorf("unmount --discard: got %s", r)
	}
	w.unmount(m)
	for _, args := range [][]string{{"session", "delete", "work", "--yes"}, {"session", "archive", "work"},
		{"session", "gc", "work"},
		{"session", "erase", "-C", "work", "--before", "1d"}, {"session", "archive", remote + "#session=work"},
		{"repo", "archive", "team/app", "work"}, {"unmount", "--discard", "--yes", "--session", "work"}} {
		if r := w.afs(args...); r.code == 0 || !strings.Contains(r.stderr, "audit of March") {
			t.Errorf("%s: got %s", strings.Join(args, " "), r)
		}
	}
	clone := w.place("clone")
	writer := must[client.NewToken](t)(api.CreateToken(t.Context(), "team",
		client.CreateToken{Repo: "app", Scope: client.Write})).Plaintext
	if _, err := gitAs(t.Context(), w.root, writer, "clone", "--quiet", remote, clone); err != nil {
		t.Fatal(err)
	}
	segment :=
		strings.Fields(must[string](t)(gitAs(t.Context(), clone, writer, "ls-remote", remote, "refs/afs/j/work/*")))[1]
	for _, token := range []string{writer, c.token} {
		for _, args := range [][]string{{":refs/afs/meta/work"}, {":" + segment}, {"+HEAD:" + segment},
			{":refs/afs/meta/work", ":" + segment, ":refs/heads/afs/work/main"}} {
			_, err := gitAs(t.Context(), clone, token, append([]string{"push", remote}, args...)...)
			if err == nil || !strings.Contains(err.Error(), "on hold") {
				t.Errorf("git push %q: got %v", args, err)
			}
		}
	}
	if _, err := gitAs(t.Context(), clone, writer, "push", remote, "+HEAD:refs/afs/meta/work"); err == nil ||
		!strings.Contains(err.Error(), "owner or admin") {
		t.Errorf("release of the hold by a token of the repository: got %v", err)
	}
	w.ok("session", "set", "work", "--no-hold")
	w.ok("session", "delete", "work", "--yes")
}

// A run of the retention does exactly what its dry run has listed: it closes, archives and deletes sessions by age,
// state and tags, leaves those on hold, active and protected ones alone, and deleted sessions can be restored until the
// trash is emptied.
func TestRetention(t *testing.T) {
	t.Parallel()
	w, c, api := hosted(t)
	remote := remoteOf(c, "team/app")
	x := api.Extensions()
	for _, s := range []struct{ name, tag string }{{"draft", "draft"}, {"held", "draft"}, {"old", "old"},
		{"young", "young"}, {"talk", "talk"}, {"busy", "draft"}} {
		m := w.bare("team/app", "--create", "--session", s.name, "--wait", "git")
		w.sh(m.Dir, "echo "+s.name+" >x")
		w.ok("session", "set", "-C", m.Dir, "--tag", s.tag)
		if s.name == "talk" {
			m.record(`{"type":"prompt","text":"erase this sentence"}`)
		}
		if s.name == "held" {
			w.ok("session", "set", "-C", m.Dir, "--hold", "audit")
		}
		m.checkpoint("--sync")
		m.sync()
		if s.name != "busy" {
			w.unmount(m)
		}
	}
	if r := w.afs("namespace", "retention", "team", "--dry-run"); r.code == 0 {
		t.Error("the dry run of a namespace without rules succeeded")
	}
	file := filepath.Join(w.root, "rules.json")
	rules :=
		`{"version":1,"trash_after":"30d","rules":[{"tags":["draft"],"delete_after":"0s"},{"tags":["old"],"archive_after":"0s"},
		{"tags":["talk"],"transcripts_after":"0s","close_after":"0s"},{"close_after":"400d","archive_after":"500d"}]}`
	check(t, os.WriteFile(file, []byte(`{"version":1,"rules":[{"states":["active"],"delete_after":"1d"}]}`), 0o600))
	if r := w.afs("namespace", "retention", "team", "--set", file); r.code != control.ExitUsage ||
		!strings.Contains(r.stderr, "unknown state") {
		t.Errorf("rules for active sessions: got %s", r)
	}
	check(t, os.WriteFile(file, []byte(rules), 0o600))
	w.ok("namespace", "retention", "team", "--set", file)
	list := func(s client.RetentionSteps, only func(client.RetentionStep) bool) string {
		var lines []string
		for _, step := range s.Steps {
			if only(step) {
				lines = append(lines, fmt.Sprint(step.Session, " ", step.State, " ", step.Action, " ", step.Why))
			}
		}
		return strings.Join(lines, "\n")
	}
	due := func(s client.RetentionStep) bool { return s.Action != "none" && !s.Due.After(time.Now()) }
	all := func(client.RetentionStep) bool { return true }
	before := must[string](t)(gitAs(t.Context(), w.root, c.token, "ls-remote", remote))
	plan := must[client.RetentionSteps](t)(x.RetentionPlan(t.Context(), "team"))
	for _, want := range []string{"draft paused delete rule 1: delete_after 0d", "held paused none on hold: audit",
		"busy active none active",
		"old paused archive rule 2: archive_after 0d", "young paused close rule 4: close_after 400d",
		"talk paused close rule 3: close_after 0d"} {
		if got := list(plan, all); !strings.Contains(got, want) {
			t.Errorf("plan lacks %q:\n%s", want, got)
		}
	}
	if got := must[string](t)(gitAs(t.Context(), w.root, c.token, "ls-remote", remote)); got != before {
		t.Error("the dry run has changed refs")
	}
	done := must[client.RetentionSteps](t)(x.RunRetention(t.Context(), "team"))
	if got, want := list(done, all), list(plan, due); got != want || done.Error != nil {
		t.Errorf("run: got %v\n%s\nwant\n%s", done.Error, got, want)
	}
	if left := must[client.RetentionSteps](t)(x.RetentionPlan(t.Context(), "team")); list(left, due) != "" {
		t.Errorf("still due after the run: %s", list(left, due))
	}
	states := map[string]string{}
	var sessions control.SessionsReply
	check(t, json.Unmarshal([]byte(w.ok("session", "list", "--session-remote", remote, "--json")), &sessions))
	for _, s := range sessions.Sessions {
		states[s.Name] = s.State
	}
	if got := fmt.Sprint(states); got != "map[busy:active held:paused old:archived talk:closed young:paused]" {
		t.Errorf("sessions after the run: got %s", got)
	}
	if got := list(must[client.RetentionSteps](t)(x.RetentionPlan(t.Context(), "team")), all); !strings.Contains(got,
		"old archived") || !strings.Contains(got, "draft deleted purge") {
		t.Errorf("plan after the run: got %s", got)
	}
	w.ok("session", "undelete", "draft", "--session-remote", remote)
	// A tombstone stays when the trash is emptied. It is no deleted session.
	w.ok("session", "delete", "draft", "--session-remote", remote, "--yes")
	check(t, os.WriteFile(file, []byte(`{"version":1,"trash_after":"0s"}`), 0o600))
	w.ok("namespace", "retention", "team", "--set", file)
	must[client.RetentionSteps](t)(x.RunRetention(t.Context(), "team"))
	trashed := must[string](t)(gitAs(t.Context(), w.root, c.token, "ls-remote", remote, "refs/afs/trash/draft/*"))
	if strings.Count(trashed, "refs/afs/trash/") != 1 || !strings.HasSuffix(strings.TrimSpace(trashed), "/deleted") {
		t.Errorf("refs of a session that was removed from the trash: got\n%s\nwant a tombstone", trashed)
	}
	if left := must[client.RetentionSteps](t)(x.RetentionPlan(t.Context(), "team")); strings.Contains(list(left, all),
		"draft deleted") {
		t.Errorf("plan with a tombstone: got %s", list(left, all))
	}
	audit := must[io.ReadCloser](t)(x.Audit(t.Context(), 0, 0))
	defer audit.Close()
	entries := string(must[[]byte](t)(io.ReadAll(audit)))
	for _, want := range []string{`"method":"delete","target":"/team/app/draft"`,
		`"method":"archive","target":"/team/app/*"`,
		`"method":"close","target":"/team/app/talk"`} {
		if !strings.Contains(entries, want) {
			t.Errorf("audit log lacks %s:\n%s", want, entries)
		}
	}
}

// A server that is killed again and again while sessions are archived and reopened loses none: each is in the
// repository or in the archive, as a whole, and at the end all are back with their checkpoints.
func TestKilledArchive(t *testing.T) {
	t.Parallel()
	w, c, api := hosted(t)
	remote := remoteOf(c, "team/app")
	names := []string{"one", "two", "three"}
	points := map[string]string{}
	refs := func() map[string]int {
		t.Helper()
		count := map[string]int{}
		for line := range strings.Lines(must[string](t)(gitAs(t.Context(), w.root, c.token, "ls-remote", remote))) {
			for _, name := range names {
				if strings.Contains(line, "/"+name+"/") || strings.HasSuffix(strings.TrimSpace(line), "/"+name) {
					count[name]++
				}
			}
		}
		return count
	}
	for _, name := range names {
		m := w.bare("team/app", "--create", "--session", name, "--wait", "git")
		w.sh(m.Dir, "echo "+name+" >x && git add x && git commit -qm x && echo more >y")
		m.checkpoint("--pin", "here", "--sync")
		w.unmount(m)
		points[name] = strings.Join(w.pointsAt(remote, name), "\n")
	}
	whole := refs()
	for round := range 8 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for i := 0; ctx.Err() == nil; i++ {
				name := names[i%len(names)]
				if i/len(names)%2 == round%2 {
					_, _ = api.Extensions().Archive(ctx, "team", "app", name)
				} else {
					_ = api.Extensions().Reopen(ctx, "team", "app", name, "")
				}
			}
		}()
		for range 10 * round { // other requests take the time until an arbitrary moment
			_, _ = api.Repo(ctx, "team", "app")
		}
		c.nodes[0].kill()
		cancel()
		<-ended
		check(t, c.nodes[0].restart())
		archived := map[string]bool{}
		for s, err := range api.Extensions().Archived(t.Context(), "team", "app") {
			check(t, err)
			archived[s.Session] = true
		}
		present := refs()
		for _, name := range names {
			if archived[name] == (present[name] > 0) || present[name] != 0 && present[name] != whole[name] {
				t.Errorf("round %d: session %s has %d refs of %d, archived %v", round, name, present[name], whole[name],
					archived[name])
			}
		}
	}
	for _, name := range names {
		_ = api.Extensions().Reopen(t.Context(), "team", "app", name, "")
		if got := strings.Join(w.pointsAt(remote, name), "\n"); got != points[name] {
			t.Errorf("checkpoints of session %s: got %s, want %s", name, got, points[name])
		}
	}
}
