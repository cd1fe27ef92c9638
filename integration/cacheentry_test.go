package integration

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/client"
	"github.com/artifactfs/artifactfs/session/cacheentry"
)

// cache runs a subcommand of "session cache" with an input.
func (w *world) cache(input string, args ...string) result {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	cmd := w.command(ctx, append([]string{"session", "cache"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		w.Fatal(err)
	}
	return result{args, stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// cached fails the test unless an entry has a value; no value means that there must be no entry.
func (w *world) cached(key, value string, at ...string) {
	w.Helper()
	r := w.cache("", append([]string{"get", key}, at...)...)
	switch {
	case value != "" && (r.code != 0 || r.stdout != value):
		w.Errorf("entry %s: got %s, want the value %.80q", key, r, value)
	case value == "" && (r.code != 1 || r.stdout != "" || !strings.Contains(r.stderr, "no entry with this key\nhint: ")):
		w.Errorf("entry %s: got %s, want exit code 1 and no entry", key, r)
	}
}

// stored runs a subcommand that changes an entry, which must succeed.
func (w *world) stored(input string, args ...string) string {
	w.Helper()
	r := w.cache(input, args...)
	if r.code != 0 {
		w.Fatal(r)
	}
	return strings.TrimSpace(r.stdout)
}

func sha256Of(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) }

// keysOf returns the keys of all entries.
func (w *world) keysOf(at ...string) string {
	w.Helper()
	var reply control.CacheKeysReply
	w.json(&reply, append([]string{"session", "cache", "keys"}, at...)...)
	var keys []string
	for _, e := range reply.Entries {
		keys = append(keys, e.Key)
	}
	return strings.Join(keys, " ")
}

// Two machines, each with its own session, share the entries of the session remote.
func TestCacheEntriesOfTwoMachines(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"path", "http"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w, r := newTravelled(t)
			s := w.serve(gittest.ServerOptions{})
			c := w.sessionRemote(kind, r)
			m := w.bare(s.URL("r.git"), append(c.flags("one"), "--wait", "git")...)
			o := w.elsewhere()
			other := o.bare(s.URL("r.git"), "--session", "two", "--session-remote", c.arg, "--wait", "git")
			here, there := []string{"-C", m.Dir}, []string{"-C", other.Dir}

			w.cached("test/1", "", here...)
			if got := w.stored("passed\n", "put", "test/1", "-C", m.Dir); got != sha256Of("passed\n") {
				t.Errorf("put printed %q", got)
			}
			o.cached("test/1", "passed\n", there...)
			w.cached("test/1", "passed\n", "--session-remote", c.arg)
			var e control.CacheEntry
			o.json(&e, append([]string{"session", "cache", "get", "test/1"}, there...)...)
			if e.Session != "one" || e.Actor == "" || e.Size != 7 || e.Hash != sha256Of("passed\n") {
				t.Errorf("description: got %+v", e)
			}
			if got := o.stored("failed\n", "put", "test/1", "--if-missing", "-C", other.Dir); got != sha256Of("passed\n") {
				t.Errorf("put --if-missing printed %q", got)
			}
			w.cached("test/1", "passed\n", here...)

			// Of two machines that replace the same value one wins.
			var all sync.WaitGroup
			results := make([]result, 2)
			for i, x := range []struct {
				*world
				dir string
			}{{w, m.Dir}, {o, other.Dir}} {
				all.Go(func() {
					results[i] = x.cache(fmt.Sprint("machine ", i), "cas", "test/1", "--expect", sha256Of("passed\n"), "-C", x.dir)
				})
			}
			all.Wait()
			won := 0
			if results[1].code == 0 {
				won = 1
			}
			hash := sha256Of(fmt.Sprint("machine ", won))
			if lost := results[1-won]; results[won].code != 0 || lost.code != 3 || strings.TrimSpace(lost.stdout) != hash {
				t.Errorf("cas at the same time: got %s and %s", results[0], results[1])
			}
			o.cached("test/1", fmt.Sprint("machine ", won), there...)
			if r := o.cache("", "delete", "test/1", "--expect", sha256Of("x"), "-C", other.Dir); r.code != 3 ||
				strings.TrimSpace(r.stdout) != hash {
				t.Errorf("delete of another value: got %s", r)
			}

			// A value in a file, from a link, and one that has expired.
			large := strings.Repeat("0123456789abcdef", 1<<17)
			check2(w, os.WriteFile(filepath.Join(w.root, "large"), []byte(large), 0o600))
			m.checkpoint("--sync")
			link := strings.TrimSpace(w.ok("session", "link", "-C", m.Dir))
			w.stored("", "put", "build", "large", "--ttl", "30d", "-C", link)
			o.cache("", "get", "build", "--output", "copy", "-C", other.Dir)
			if got, err := os.ReadFile(filepath.Join(w.root, "copy")); err != nil || string(got) != large {
				t.Errorf("large value: got %d bytes, %v", len(got), err)
			}
			w.stored("soon gone", "put", "short", "--ttl", "1ms", "-C", m.Dir)
			w.until("the entry has expired",
				func() bool { return o.cache("", append([]string{"get", "short"}, there...)...).code == 1 })
			if got := o.keysOf(there...); got != "build test/1" {
				t.Errorf("keys: got %q", got)
			}
			if got := o.keysOf(append(there, "--expired")...); got != "build short test/1" {
				t.Errorf("keys --expired: got %q", got)
			}
			var gc control.CacheGCReply
			o.json(&gc, "session", "cache", "gc", "--dry-run", "-C", other.Dir)
			if gc.Count != 1 || gc.Removed[0].Key != "short" || gc.Kept != 2 {
				t.Errorf("gc --dry-run: got %+v", gc)
			}
			o.json(&gc, "session", "cache", "gc", "--max-size", "100", "-C", other.Dir)
			if gc.Count != 3 || gc.Kept != 0 {
				t.Errorf("gc --max-size: got %+v", gc)
			}
			w.cached("build", "", here...)
			w.sound(c.Path)
			// The sessions are as before, and deleting one leaves the entries.
			w.stored("stays", "put", "k", "-C", m.Dir)
			w.unmount(m)
			w.ok("session", "delete", "one", "--yes")
			o.cached("k", "stays", there...)
			for name, r := range map[string]result{
				"large value":  w.cache(strings.Repeat("x", cacheentry.MaxValue+1), "put", "k", "--session-remote", c.arg),
				"long key":     w.cache("x", "put", strings.Repeat("k", cacheentry.MaxKey+1), "--session-remote", c.arg),
				"invalid hash": w.cache("x", "cas", "k", "--expect", "abc", "--session-remote", c.arg),
			} {
				if r.code != control.ExitUsage {
					t.Errorf("%s: got %.300s", name, r)
				}
			}
		})
	}
}

// A session without a session remote has its entries in the embedded one, while it is mounted and afterwards.
func TestCacheEntriesOfEmbeddedSessionRemote(t *testing.T) {
	t.Parallel()
	w, _ := newTravelled(t)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("r.git"), "--session", "work", "--wait", "git")
	w.cached("k", "", "-C", m.Dir)
	if got := w.keysOf("-C", m.Dir); got != "" {
		t.Errorf("keys: got %q", got)
	}
	w.stored("one", "put", "k", "-C", m.Dir)
	w.sh(m.Dir, "echo new >new && git add new && git commit -qm new")
	m.checkpoint()
	w.ok("session", "gc", "-C", m.Dir)
	w.cached("k", "one", "-C", m.Dir)
	if r := w.cache("two", "cas", "k", "--expect", cacheentry.None, "-C", m.Dir); r.code != 3 {
		t.Errorf("cas of an entry that exists: got %s", r)
	}
	w.stored("two", "cas", "k", "--expect", sha256Of("one"), "-C", m.Dir)
	w.unmount(m)
	w.cached("k", "two", "-C", "work")
	w.stored("three", "put", "other", "-C", "work")
	repo := filepath.Join(w.state, "mounts", "work", "session.git")
	w.cached("k", "two", "--session-remote", repo)
	w.stored("", "delete", "k", "-C", "work")
	if got := w.keysOf("-C", "work"); got != "other" {
		t.Errorf("keys: got %q", got)
	}
	if got := w.git(repo, "cat-file", "blob", cacheentry.Ref("other")+"^:value"); got != "three" {
		t.Errorf("value that git finds: got %q", got)
	}
}

// Forks of a repository on a server have the entries of the parent, until they are changed. Tokens of sessions can
// change entries, and nothing else that is not of their session.
func TestCacheEntriesOnServer(t *testing.T) {
	t.Parallel()
	w, _, api := hosted(t)
	m := w.bare("team/app", "--create", "--session", "work", "--wait", "git")
	w.stored("parent", "put", "shared", "-C", m.Dir)
	w.stored("kept", "put", "kept", "-C", m.Dir)
	w.stored("old", "put", "gone", "-C", m.Dir)
	w.cached("shared", "parent", "-C", m.Dir)
	if r := w.cache("x", "cas", "shared", "--expect", cacheentry.None, "-C", m.Dir); r.code != 3 ||
		strings.TrimSpace(r.stdout) != sha256Of("parent") {
		t.Errorf("cas on the server: got %s", r)
	}

	must[client.Created](t)(api.Fork(t.Context(), "team", "app", client.Fork{Name: "retry"}))
	o := w.elsewhere()
	f := o.bare("team/retry", "--create", "--session", "retry", "--wait", "git")
	o.cached("shared", "parent", "-C", f.Dir)
	o.stored("fork", "put", "shared", "-C", f.Dir)
	o.stored("", "delete", "gone", "-C", f.Dir)
	o.cached("shared", "fork", "-C", f.Dir)
	o.cached("kept", "kept", "-C", f.Dir)
	o.cached("gone", "", "-C", f.Dir)
	w.cached("shared", "parent", "-C", m.Dir)
	w.cached("gone", "old", "-C", m.Dir)
	w.stored("later", "put", "new", "-C", m.Dir)
	if got := o.keysOf("-C", f.Dir); got != "kept shared" {
		t.Errorf("keys of the fork: got %q", got)
	}
	var gc control.CacheGCReply
	w.json(&gc, "session", "cache", "gc", "--max-size", "1", "-C", m.Dir)
	if gc.Count != 4 || gc.Kept != 0 {
		t.Errorf("gc on the server: got %+v", gc)
	}
	o.cached("kept", "kept", "-C", f.Dir)

	// The token of another session, with stock git.
	made := must[client.Repo](t)(api.Repo(t.Context(), "team", "app"))
	token := must[client.NewToken](t)(api.CreateToken(t.Context(), "team",
		client.CreateToken{Repo: "app", Session: "third"}))
	clone := w.place("clone")
	as := func(args ...string) error {
		_, err := gitAs(context.Background(), clone, token.Plaintext, args...)
		return err
	}
	if _, err := gitAs(context.Background(), w.root, token.Plaintext, "clone", "--quiet", made.Remote, clone); err != nil {
		t.Fatal(err)
	}
	w.sh(clone, "git -c user.name=n -c user.email=e commit -q --allow-empty -m x")
	ref := cacheentry.Ref("from git")
	if err := as("push", "--quiet", "origin", "HEAD:"+ref); err == nil ||
		!strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("push of a commit that is no entry: got %v, want a refusal", err)
	}
	if err := as("push", "--quiet", "origin", ":"+cacheentry.Ref("kept")); err != nil {
		t.Errorf("removal of an entry: %v", err)
	}
	for _, name := range []string{"refs/heads/main", "refs/afs/meta/work", "refs/afs/cache/entries/ab",
		"refs/afs/cache/other", ref + "/x"} {
		if err := as("push", "--quiet", "--force", "origin", "HEAD:"+name); err == nil ||
			!strings.Contains(err.Error(), "token does not allow") {
			t.Errorf("push of %s: got %v, want a refusal", name, err)
		}
	}
	o.unmount(f)
	w.unmount(m)
}

// A put that kill -9 of the daemon and of its git interrupts leaves the old or the new value.
func TestCacheEntryAfterKill(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"path", "http", "embedded"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w, _ := newTravelled(t)
			at := []string{"-C", "work"}
			if kind != "embedded" {
				at = []string{"--session-remote", w.sessionRemote(kind, nil).arg}
			} else {
				m := w.bare(w.serve(gittest.ServerOptions{}).URL("r.git"), "--session", "work", "--wait", "git")
				w.stored("first", "put", "first", "-C", m.Dir)
				w.unmount(m)
			}
			value := func(i int) string { return strings.Repeat(fmt.Sprintf("value %d\n", i), 1<<17) }
			w.stored(value(0), append([]string{"put", "k"}, at...)...)
			known := value(0)
			for i := range 5 {
				next, daemon := value(i+1), w.daemon()
				done := make(chan result, 1)
				go func() { done <- w.cache(next, append([]string{"put", "k"}, at...)...) }()
				// The value is complete in the state directory when the daemon begins to store it.
				w.until("the value is with the daemon", func() bool {
					files, err := filepath.Glob(filepath.Join(w.state, "cache-value-*.tmp"))
					check2(w, err)
					for _, name := range files {
						if info, err := os.Stat(name); err == nil && info.Size() == int64(len(next)) {
							return true
						}
					}
					return len(done) > 0
				})
				check2(w, syscall.Kill(-daemon, syscall.SIGKILL))
				<-done
				w.dead()
				r := w.cache("", append([]string{"get", "k"}, at...)...)
				if r.code != 0 || r.stdout != known && r.stdout != next {
					t.Fatalf("value after kill %d: got exit code %d, %d bytes, %s; want the old or the new value", i, r.code,
						len(r.stdout), r.stderr)
				}
				known = r.stdout
			}
			var reply control.CacheKeysReply
			text := w.ok(append([]string{"session", "cache", "keys", "--json"}, at...)...)
			if err := json.Unmarshal([]byte(text), &reply); err != nil || reply.Damaged != 0 {
				t.Errorf("keys after the kills: got %+v, %v", reply, err)
			}
		})
	}
}

// The next daemon removes temporary files that kill -9 of a command or of the daemon has left behind, and none that a
// command uses.
func TestTemporaryFilesAfterKill(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at := w.sessionRemote("http", nil).arg
	w.stored("first", "put", "first", "--session-remote", at)
	temporary := func() []string {
		return must[[]string](t)(filepath.Glob(filepath.Join(w.state, "*.tmp")))
	}
	put := func(key string) (*exec.Cmd, io.WriteCloser) {
		before := len(temporary())
		cmd := w.command(t.Context(), "session", "cache", "put", key, "--session-remote", at)
		in := must[io.WriteCloser](t)(cmd.StdinPipe())
		check2(w, cmd.Start())
		w.until("the command has a temporary file", func() bool { return len(temporary()) > before })
		return cmd, in
	}
	daemon := w.daemon()
	killed, _ := put("killed")
	check2(w, killed.Process.Kill())
	killed.Wait()
	used, in := put("used")
	keep := temporary()
	check2(w, syscall.Kill(-daemon, syscall.SIGKILL))
	w.until("only the command is left", func() bool { return slices.Equal(daemonsBelow(w.root), []int{used.Process.Pid}) })
	for _, name := range []string{"mirror-1.tmp/objects", "merge-2.tmp", "cacheentry-3.tmp", "compare-4.tmp",
		"promote-5.tmp", "reffile-6.tmp", "meta-7.tmp"} {
		check2(w, os.MkdirAll(filepath.Join(w.state, name), 0o700))
	}
	w.stored("second", "put", "second", "--session-remote", at)
	w.until("temporary files are removed", func() bool { return len(temporary()) == 1 })
	if !slices.Contains(keep, temporary()[0]) {
		t.Errorf("temporary files: got %q, want that of the command, one of %q", temporary(), keep)
	}
	io.WriteString(in, "value")
	in.Close()
	if err := used.Wait(); err != nil {
		t.Errorf("put whose temporary file was in use while a daemon started: %v", err)
	}
	if got := w.cache("", "get", "used", "--session-remote", at); got.stdout != "value" {
		t.Errorf("value that was put: got %s", got)
	}
	w.until("no temporary file is left", func() bool { return len(temporary()) == 0 })
}

// run prints the value of an entry, or runs a command and stores its output, with the exit code of the command.
func TestCacheRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at := []string{"--session-remote", w.sessionRemote("http", nil).arg}
	count := w.place("count")
	run := func(key, script string) result {
		return w.cache("from stdin\n", append(append([]string{"run", key}, at...), "--", "sh", "-c", script)...)
	}
	check := func(what string, r result, code int, stdout, stderr string) {
		t.Helper()
		if r.code != code || r.stdout != stdout || !strings.Contains(r.stderr, stderr) || stderr == "" && r.stderr != "" {
			t.Errorf("%s: got %s, want exit code %d, %q and %q", what, r, code, stdout, stderr)
		}
	}
	script := "echo run >>" + count + "; cat; echo out; echo err >&2"
	check("command without an entry", run("k", script), 0, "from stdin\nout\n", "err\n")
	check("command with an entry", run("k", script), 0, "from stdin\nout\n", "")
	w.cached("k", "from stdin\nout\n", at...)
	for range 2 {
		check("command that fails", run("failing", "echo run >>"+count+"; echo no; exit 7"), 7, "no\n", "")
	}
	w.cached("failing", "", at...)
	check("command that is killed", run("killed", "echo part; kill -9 $$"), 128+9, "part\n", "")
	w.cached("killed", "", at...)
	check("no output", run("empty", "true"), 0, "", "")
	check("no output again", run("empty", "echo wrong"), 0, "", "")
	if text := string(must[[]byte](t)(os.ReadFile(count))); text != strings.Repeat("run\n", 3) {
		t.Errorf("commands ran %d times, want 3", strings.Count(text, "\n"))
	}
	large := fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x", cacheentry.MaxValue+1)
	if r := run("large", large+" | tail -c 3"); r.code != 0 || r.stdout != "xxx" {
		t.Errorf("output of a filter: got %s", r)
	}
	if r := run("too-large", large); r.code != 0 || len(r.stdout) != cacheentry.MaxValue+1 ||
		!strings.Contains(r.stderr, "larger than 64 MiB") {
		t.Errorf("output that is too large: got exit code %d, %d bytes, %s", r.code, len(r.stdout), r.stderr)
	}
	w.cached("too-large", "", at...)
	check("command that does not exist",
		w.cache("", append(append([]string{"run", "none"}, at...), "--", "no-such-command")...), 127, "", "not found")
	check("no command", w.cache("", append([]string{"run", "none"}, at...)...), control.ExitUsage, "", "want KEY -- CMD")
	away := w.cache("", "run", "k", "--session-remote", "http://127.0.0.1:1/r.git", "--", "echo", "made")
	check("session remote that cannot be reached", away, 0, "made\n", "artifactfs: warning: ")
	if left := must[[]string](t)(filepath.Glob(filepath.Join(w.state, "*.tmp"))); len(left) > 0 {
		t.Errorf("temporary files: got %q, want none", left)
	}
}
