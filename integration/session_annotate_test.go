package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/client"
	"github.com/artifactfs/artifactfs/session"
)

// annotations lists the threads of a session.
func (w *world) annotations(args ...string) (reply control.SessionAnnotationsReply) {
	w.Helper()
	w.json(&reply, append([]string{"session", "annotations"}, args...)...)
	return reply
}

// annotate annotates a session and returns the id of the annotation.
func (w *world) annotate(args ...string) string {
	w.Helper()
	return strings.TrimSpace(w.ok(append([]string{"session", "annotate"}, args...)...))
}

// now returns where the thread with an id is now, as "STATE PATH:LINE-END".
func (w *world) now(r control.SessionAnnotationsReply, id string) string {
	w.Helper()
	for _, t := range r.Threads {
		if t.ID == id && t.Now != nil {
			return fmt.Sprintf("%s %s:%d-%d", t.Now.State, t.Now.Path, t.Now.Line, t.Now.End)
		}
	}
	got, _ := json.Marshal(r)
	w.Fatalf("there is no thread %s about a file: %s", id, got)
	return ""
}

// A line keeps its annotation when its file is renamed and edited, in checkpoints before and after, mounted or not, and
// for a reviewer who has only the session remote. Annotations of a session with the embedded session remote are pushed
// to the one that it gets later.
func TestAnnotationsFollowLines(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"embedded", "thin", "shared"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			r := w.repo("r.git", object.SHA1)
			must[object.ID](t)(r.Sized(3, 3))
			base := w.commit(r, map[string]gittest.File{"src/old.txt": {Data: []byte(numbered(30))}})
			origin := w.serve(gittest.ServerOptions{}).URL("r.git")
			from := r
			if kind == "thin" {
				from = nil
			}
			c := w.sessionRemote("http", from)
			flags := append(c.flags("work"), "--wait", "git")
			first := flags
			if kind == "embedded" {
				first = []string{"--session", "work", "--wait", "git"}
			}
			m := w.bare(origin, first...)
			alice, in := w.as("alice"), []string{"-C", "work"}
			note := func(args ...string) string { t.Helper(); return alice.annotate(append(args, in...)...) }

			if got := w.annotations(in...); len(got.Threads) != 0 {
				t.Errorf("annotations of a new session: got %+v", got)
			}
			whole := note("-m", "looks good, token=ghp_0123456789abcdefghijABCDEFGHIJ012345")
			line := note("--path", "src/old.txt:10-11", "-m", "is this line needed?")
			file := note("--path", "src/old.txt", "-m", "rename this file")
			commit := note("--commit", "HEAD", "--path", "src/old.txt:1", "-m", "on the commit")
			before := m.checkpoint("--sync")
			w.sh(m.Dir,
				`mkdir lib && mv src/old.txt lib/new.txt && sed -i '1i above 1\nabove 2\nabove 3' lib/new.txt && sed -i '$d' lib/new.txt`)
			after := m.checkpoint("--sync")
			point := note(after.ID, "-m", "before the rest")
			w.sh(m.Dir, `sed -i '/^line 10 /d; /^line 11 /d' lib/new.txt`)
			end := m.checkpoint("--sync")

			look := func(w *world, at func(id string) []string) {
				t.Helper()
				for id, want := range map[string][]string{
					before.ID: {"same src/old.txt:10-11", "same src/old.txt:0-0", "same src/old.txt:1-1"},
					after.ID:  {"moved lib/new.txt:13-14", "moved lib/new.txt:0-0", "moved lib/new.txt:4-4"},
					end.ID:    {"outdated lib/new.txt:0-0", "moved lib/new.txt:0-0", "moved lib/new.txt:4-4"},
				} {
					got := w.annotations(at(id)...)
					for i, thread := range []string{line, file, commit} {
						if where := w.now(got, thread); got.Checkpoint != id || where != want[i] {
							t.Errorf("thread %d at checkpoint %s (of %s): got %s, want %s", i, got.Checkpoint, id, where, want[i])
						}
					}
				}
			}
			here := func(id string) []string { return append([]string{id}, in...) }
			look(w, here)
			all := w.annotations(in...)
			if len(all.Threads) != 5 || all.Threads[0].ID != whole ||
				strings.Contains(all.Threads[0].Annotations[0].Text, "ghp_") ||
				all.Threads[1].On.Quote != "line 10 of the file\nline 11 of the file" ||
				all.Threads[1].Annotations[0].Actor != "alice" ||
				all.Threads[3].On.Commit != base.String() || all.Threads[4].ID != point ||
				all.Threads[4].On.Checkpoint != after.ID {
				t.Errorf("annotations: got %+v", all)
			}
			if got := w.annotations(append(in, "--path", "lib")...); len(got.Threads) != 3 {
				t.Errorf("annotations below lib: got %+v", got)
			}
			for want, args := range map[string][]string{
				"line 40 of a file of 30 lines": {"--path", "src/old.txt:40", before.ID, "-m", "x"},
				"does not contain this file":    {"--path", "none", "-m", "x"},
				"path is a directory":           {"--path", "lib", "-m", "x"},
				"no such thread":                {"--resolve", "01M80Q4Z50EZKC5YR3HTMPRYYQ"},
				"several threads":               {"--resolve", "0"},
				"no such commit":                {"--commit", "none", "-m", "x"},
			} {
				if r := w.afs(append(append([]string{"session", "annotate"}, args...), in...)...); r.code == 0 ||
					!strings.Contains(r.stderr, want) {
					t.Errorf("got %s, want an error with %q", r, want)
				}
			}
			w.unmount(m)
			look(w, here)
			if kind == "embedded" {
				m = w.bare(origin, flags...)
				w.ok("sync", m.Dir)
				w.unmount(m)
			}

			// A reviewer has only the session remote.
			bob := w.elsewhere().as("bob")
			far := func(id string) []string { return []string{"work@" + id, "--session-remote", c.arg} }
			look(bob, far)
			if got := bob.annotate("--session-remote", c.arg, "work", "--path", "lib/new.txt:2", "-m", "mine"); bob.now(
				bob.annotations(far(after.ID)...), got) != "moved lib/new.txt:2-2" {
				t.Errorf("annotation of the reviewer at %s is at %s", after.ID, bob.now(bob.annotations(far(after.ID)...), got))
			}
			bob.annotate("--session-remote", c.arg, "work", "--reply", line, "-m", "no")
			if got := bob.annotate("--session-remote", c.arg, "work", "--resolve", strings.ToLower(line)); got != "resolved "+
				line {
				t.Errorf("resolve printed %q", got)
			}
			open, every := w.annotations(in...), w.annotations(append(in, "--all")...)
			if len(open.Threads) != 5 || len(every.Threads) != 6 || every.Threads[1].State != "resolved" ||
				len(every.Threads[1].Annotations) != 3 || every.Threads[1].Annotations[1].Actor != "bob" {
				t.Errorf("after a thread was resolved: got %+v, with --all %+v", open, every)
			}
			note("--reopen", line, "-m", "it is")
			if got := w.annotations(in...); len(got.Threads) != 6 {
				t.Errorf("after the thread was reopened: got %+v", got)
			}

			// The annotations are deleted and restored together with the session.
			want := w.annotations(append(in, "--all")...)
			w.ok("session", "delete", "work", "--yes")
			if r := bob.afs("session", "annotations", "work", "--session-remote", c.arg); r.code == 0 {
				t.Errorf("annotations of a deleted session: got %s", r)
			}
			if got := w.git(c.Path, "for-each-ref", "--format=x", session.AnnotationsRef("work")); got != "" {
				t.Errorf("the annotations of the deleted session are still in %s", session.AnnotationsRef("work"))
			}
			w.ok("session", "undelete", "work")
			got, there := w.annotations(append(in, "--all")...), bob.annotations("work", "--session-remote", c.arg, "--all")
			if fmt.Sprint(got.Threads[0], len(got.Threads)) != fmt.Sprint(want.Threads[0], len(want.Threads)) ||
				len(there.Threads) != len(want.Threads) {
				t.Errorf("after undelete: got %+v, on the session remote %+v, want %+v", got, there, want)
			}
			w.sound(c.Path)
		})
	}
}

// numbered returns a text of n different lines.
func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "line %d of the file\n", i+1)
	}
	return b.String()
}

// Annotations that several users make at the same time, on a session of the server, are all kept.
func TestAnnotationsOnServer(t *testing.T) {
	t.Parallel()
	w, c, api := hosted(t)
	m := w.bare("team/app", "--create", "--session", "work", "--wait", "git")
	w.sh(m.Dir, "printf 'a\\nb\\nc\\n' >list.txt")
	m.checkpoint("--sync")
	const each = 3
	var all sync.WaitGroup
	for _, user := range []string{"alice", "bob", "carol"} {
		made := must[client.NewToken](t)(api.CreateToken(t.Context(), "team",
			client.CreateToken{Repo: "app", Actor: user, TTL: 3600, Session: "work"}))
		at := strings.Replace(m.Remote, "://", "://"+url.UserPassword("x", made.Plaintext).String()+"@", 1)
		u := w.elsewhere()
		u.env = slices.DeleteFunc(u.env, func(v string) bool { return strings.HasPrefix(v, "ARTIFACTFS_SERVER") })
		all.Go(func() {
			for i := range each {
				r := u.afs("session", "annotate", "work", "--session-remote", at, "--path", fmt.Sprintf("list.txt:%d", i+1), "-m",
					fmt.Sprint("note ", i))
				if r.code != 0 || strings.Contains(r.stdout+r.stderr, made.Plaintext) {
					t.Errorf("annotate as %s: %s", user, r)
				}
			}
		})
	}
	all.Go(func() {
		for i := range each {
			if r := w.afs("session", "annotate", "-C", m.Dir, "-m", fmt.Sprint("note ", i)); r.code != 0 {
				t.Errorf("annotate in the mount: %s", r)
			}
		}
	})
	all.Wait()
	got := w.annotations("-C", m.Dir)
	texts := map[string]int{}
	for _, thread := range got.Threads {
		texts[thread.Annotations[0].Actor+" "+thread.Annotations[0].Text]++
	}
	if len(got.Threads) != 4*each || len(texts) != 4*each {
		t.Errorf("annotations of four users: got %v", texts)
	}
	// The server knows the user of a token, whatever name the command sends.
	named := must[client.NewToken](t)(api.CreateToken(t.Context(), "team", client.CreateToken{Repo: "app", Actor: "erin"}))
	var reply control.SessionAnnotateReply
	w.elsewhere().as("frank").json(&reply, "session", "annotate", "work", "-m", "mine", "--session-remote",
		strings.Replace(m.Remote, "://", "://"+url.UserPassword("x", named.Plaintext).String()+"@", 1))
	if got := reply.Thread.Annotations[0].Actor; got != "erin" {
		t.Errorf("actor of an annotation with the token of erin: got %q", got)
	}
	w.unmount(m)
	noToken(t, "log of a daemon", strings.ReplaceAll(w.log(), c.token, ""))
}

// A server accepts annotations only from the users who make them, also by stock git. Deleted sessions are restored with
// their annotations, and a session whose annotations the server does not accept can still be pushed.
func TestServerChecksAnnotations(t *testing.T) {
	t.Parallel()
	w, _, api := hosted(t)
	r := w.repo("r.git", object.SHA1)
	w.commit(r, sample("annotated"))
	m := w.bare(r.Path, "--session", "work", "--wait", "git")
	w.annotate("-C", m.Dir, "-m", "made before there was a server")
	w.unmount(m)
	made := must[client.Created](t)(api.CreateRepo(t.Context(), "team", client.CreateRepo{Name: "notes"}))
	at := func(actor string) (url, token string) {
		got := must[client.NewToken](t)(api.CreateToken(t.Context(), "team", client.CreateToken{Repo: "notes", Actor: actor}))
		return strings.Replace(made.Remote, "://", "://x:"+strings.ReplaceAll(got.Plaintext, "?", "%3F")+"@", 1),
			got.Plaintext
	}
	agent, _ := at("agent")
	alice, token := at("alice")
	m = w.bare(r.Path, "--session", "work", "--session-remote", agent, "--wait", "git")
	w.sh(m.Dir, "echo x >new")
	m.checkpoint("--sync")
	if text := w.ok("status", m.Dir); !strings.Contains(text, "does not accept the annotations that were made before") {
		t.Errorf("status after a push of annotations of a user whom the server does not know: got %s", text)
	}
	w.annotate("-C", m.Dir, "-m", "with the server")
	o := w.elsewhere()
	o.annotate("work", "--session-remote", alice, "-m", "by alice")
	text := func(a control.SessionAnnotationsReply) (all []string) {
		for _, thread := range a.Threads {
			all = append(all, thread.Annotations[0].Actor+": "+thread.Annotations[0].Text)
		}
		return all
	}
	want := []string{"agent: with the server", "alice: by alice"}
	if got := text(o.annotations("work", "--session-remote", alice)); !slices.Equal(got, want) {
		t.Errorf("annotations of the server: got %q, want %q", got, want)
	}
	if got := text(w.annotations("-C", m.Dir)); len(got) != 3 ||
		!strings.HasSuffix(got[0], ": made before there was a server") {
		t.Errorf("annotations where the session is mounted: got %q, want those of the server and an older one", got)
	}

	ref := session.AnnotationsRef("work")
	clone := w.clone(made.Remote[:strings.Index(made.Remote, "://")+3] + alice[strings.Index(alice, "://")+3:])
	push := func(what, script, refusal string) {
		t.Helper()
		w.sh(clone, "git fetch -q origin +"+ref+":work && git checkout -q work && "+script+
			" && git add . && git commit -qm forged")
		_, err := gitAs(context.Background(), clone, token, "push", "--quiet", "origin", "+HEAD:"+ref)
		if err == nil || !strings.Contains(err.Error(), refusal) {
			t.Errorf("%s: got %v, want %q", what, err, refusal)
		}
		w.sh(clone, "git checkout -q --detach")
	}
	push("removal of the annotations of others", "sed -i 1d annotations.jsonl",
		"annotations cannot be changed or removed, only added")
	push("change of annotations of others", "sed -i 's/with the server/forged/' annotations.jsonl", "the id of annotation")
	push("annotation under the name of another user",
		`sed -n '1{s/with the server/forged/;s/"id":"01../"id":"01AB/;s/"thread":"01../"thread":"01AB/;p}' annotations.jsonl >a && cat a >>annotations.jsonl && rm a`,
		`is by "agent", but the token is of alice`)

	w.unmount(m)
	w.ok("session", "delete", "work", "--yes", "--session-remote", agent)
	o.ok("session", "undelete", "work", "--session-remote", agent)
	if got := text(o.annotations("work", "--session-remote", alice)); !slices.Equal(got, want) {
		t.Errorf("annotations of the restored session: got %q, want %q", got, want)
	}
}

// log returns the log of the daemon.
func (w *world) log() string {
	w.Helper()
	return w.sh(w.root, "cat "+filepath.Clean(w.logFile()))
}
