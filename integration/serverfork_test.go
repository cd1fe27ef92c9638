package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/integration/harness/chrome"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/client"
)

// A reviewer who has only a link with a token in its fragment opens it in a browser, copies the command from the page,
// and runs it on a machine that knows neither the server nor the session. The fork is then mounted with the files of
// the checkpoint. The test logs the time from the link to the files.
func TestFromLinkToRunningFork(t *testing.T) {
	t.Parallel()
	w, c, api := hosted(t)
	tab := chrome.Start(t).Tab(t)
	m := w.bare("team/app", "--create", "--session", "work", "--wait", "git")
	w.sh(m.Dir, "echo one >one.txt && git add one.txt && git commit -qm 'one file' && mkdir new && echo two >new/two.txt")
	p := m.checkpoint("--sync", "-m", "two files")
	w.sh(m.Dir, "rm one.txt && echo three >new/three.txt")
	m.checkpoint("--sync", "-m", "after it")

	for _, scope := range []string{client.Read, client.Write} {
		token := must[client.NewToken](t)(api.CreateToken(t.Context(), "team",
			client.CreateToken{Repo: "app", Scope: scope, Actor: "reviewer"}))
		o := w.elsewhere()
		dir := w.place("reviewer")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}

		start := now()
		begin := start.at
		tab.Open(c.proxy.url() + "/ui/team/app/s/work?at=" + p.ID + "#token=" + token.Plaintext)
		tab.Until(`document.querySelector("form[action$='/command'] button")`)
		tab.Loads(func() { tab.Click("form[action$='/command'] button") })
		shown := time.Now()
		tab.Click("[data-copy]")
		tab.Until(`/Copied|Selected/.test(document.getElementById("said").textContent)`)
		text := tab.Text(`document.querySelector(".commands code").textContent`)
		ctx, cancel := context.WithTimeout(t.Context(), commandTime)
		defer cancel()
		cmd := exec.CommandContext(ctx, "sh", "-ec", text)
		cmd.Dir, cmd.Env = dir, append(gittest.Env(), "ARTIFACTFS_STATE="+o.state, "HOME="+dir,
			"PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("run the command of the page: %v\n%s", err, out)
		}
		two, err := os.ReadFile(filepath.Join(dir, "work-fork", "new", "two.txt"))
		took := time.Since(begin)
		if err != nil || string(two) != "two\n" {
			t.Errorf("file in the fork: got %q, %v", two, err)
		}
		if got := w.sh(filepath.Join(dir, "work-fork"),
			"cat one.txt; ls new; git log -1 --format=%s"); got != "one\ntwo.txt\none file" {
			t.Errorf("files of the fork: got %q", got)
		}
		t.Logf("from the link to files in the fork with a %s token: %s, of which the browser %s", scope,
			took.Round(10*time.Millisecond),
			shown.Sub(begin).Round(10*time.Millisecond))
		if start.elapsed() > time.Minute {
			t.Errorf("from the link to files in the fork: %s", took)
		}
		for _, line := range tab.Console() {
			if !strings.Contains(line, "401 (Unauthorized)") { // the first answer, which asks for a token
				t.Errorf("console of the browser: %s", line)
			}
		}
	}
}

// The sessions of a fork are closed copies that name the original, and have its transcripts only if the request demands
// that. The original continues, and a copy that was opened again can be resumed from the fork.
func TestForkClosesSessions(t *testing.T) {
	t.Parallel()
	w, c, api := hosted(t)
	m := w.bare("team/app", "--create", "--session", "work", "--wait", "git", "--checkpoint", "off")
	w.sh(m.Dir, "echo one >one.txt && git add one.txt && git commit -qm 'one file' && echo two >two.txt")
	m.record(`{"kind":"prompt","text":"count"}`)
	p := m.checkpoint("--sync")
	original := c.proxy.url() + "/git/team/app.git"
	refs := func(name string) (meta, transcript bool) {
		t.Helper()
		for ref, err := range api.Extensions().Refs(t.Context(), "team", name, "refs/afs/") {
			if err != nil {
				t.Fatal(err)
			}
			meta, transcript = meta || ref.Name == "refs/afs/meta/work", transcript || ref.Name == "refs/afs/transcript/work"
		}
		return meta, transcript
	}
	for name, f := range map[string]client.Fork{
		"plain": {}, "talks": {Transcripts: true}, "fixed": {ReadOnly: true},
		"globs": {Refs: []string{"refs/heads/**", "refs/afs/**"}},
		"heads": {DefaultBranchOnly: true}, "away": {Namespace: "other"},
	} {
		ns := "team"
		if f.Namespace != "" {
			ns = f.Namespace
		}
		f.Name = name
		must[client.Created](t)(api.Fork(t.Context(), "team", "app", f))
		if ns != "team" {
			continue
		}
		meta, transcript := refs(name)
		if meta != (name != "heads") || transcript != f.Transcripts {
			t.Errorf("refs of fork %s: session %v, transcript %v", name, meta, transcript)
		}
		if !meta {
			continue
		}
		s := must[client.Session](t)(api.Extensions().Repository(ns, name).Session(t.Context(), "work"))
		if s.State != "closed" || s.CopyOf != original+"#session=work" || len(s.Writers) > 0 || s.Checkpoint != p.ID {
			t.Errorf("session of fork %s: got %+v, want a closed copy of %s#session=work at %s", name, s, original, p.ID)
		}
	}
	if s := must[client.Session](t)(api.Extensions().Repository("team", "app").Session(t.Context(),
		"work")); s.State != "active" || s.CopyOf != "" {
		t.Errorf("the original after the forks: got %+v, want it to be active", s)
	}
	w.sh(m.Dir, "echo three >three.txt")
	m.checkpoint("--sync")

	o := w.elsewhere()
	fork := c.proxy.url() + "/git/team/plain.git"
	dir := w.place("copy")
	if got := o.afs("session", "resume", "work", dir, "--session-remote", fork); got.code == 0 ||
		!strings.Contains(got.stderr, "closed copy of "+original+"#session=work") ||
		!strings.Contains(got.stderr, "session reopen") {
		t.Errorf("resume of the copy: got %s, want that it is a closed copy", got)
	}
	o.ok("session", "reopen", fork+"#session=work")
	o.ok("session", "resume", "work", dir, "--session-remote", fork, "--wait", "git")
	if got := w.sh(dir,
		"ls *.txt && git status --short && git log -1 --format=%s"); got != "one.txt\ntwo.txt\n?? two.txt\none file" {
		t.Errorf("files of the copy: got %q", got)
	}
	if got := w.afs("session", "list", "--session-remote", fork, "--json"); !strings.Contains(got.stdout,
		`"copy_of":"`+original+"#session=work") {
		t.Errorf("list of the fork: got %s, want the link to the original", got)
	}
	o.unmount(mounted{control.MountReply{Dir: dir}, o})
}
