package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/host/statedir/space"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/internal/metrics/metricstest"
)

// scrape reads the metrics and parses them strictly.
func (w *world) scrape(socket string) (map[string]*metricstest.Family, string) {
	w.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}}
	answer := must[*http.Response](w)(client.Get("http://metrics/metrics"))
	defer answer.Body.Close()
	text := must[[]byte](w)(io.ReadAll(answer.Body))
	all, err := metricstest.Parse(string(text))
	if err != nil || answer.Header.Get("Content-Type") != "text/plain; version=0.0.4; charset=utf-8" {
		w.Fatalf("get metrics: got %v with header %v, want the text format 0.0.4\n%s", err, answer.Header, text)
	}
	return all, string(text)
}

func TestMetrics(t *testing.T) {
	w := newWorld(t)
	r := w.repo("seen.git", object.SHA1)
	files := map[string]gittest.File{}
	for i := range 30 {
		files[fmt.Sprintf("dir/file%d", i)] = gittest.File{Data: fmt.Appendf(nil, "content %d\n", i)}
	}
	commit := w.commit(r, files)
	s := w.serve(gittest.ServerOptions{})
	socket := filepath.Join(w.root, "m.sock")
	w.startDaemon("--metrics", "unix:"+socket)
	w.until("serving metrics", func() bool { return exists(socket) })
	empty, _ := w.scrape(socket)
	if n, ok := metricstest.Value(empty, "artifactfs_mounts"); !ok || n != 0 {
		t.Errorf("artifactfs_mounts: got %v", n)
	}
	url := s.URL("seen.git")
	dir, work := filepath.Join(w.root, "a \"b\\c\nd"), filepath.Join(w.root, "work.git")
	w.git(w.root, "init", "-q", "--bare", work)
	w.ok("mount", strings.Replace(url, "://", "://user:hunter2@", 1), dir, "--history", "none", "--prefetch", "none",
		"--session-remote", work)
	for i := range 30 {
		must[[]byte](t)(os.ReadFile(fmt.Sprintf("%s/dir/file%d", dir, i)))
	}
	check(t, os.WriteFile(filepath.Join(dir, "new"), []byte("12345"), 0o644))
	w.ok("checkpoint", dir, "--sync")
	all, text := w.scrape(socket)
	for _, want := range []struct {
		name   string
		labels []string
		least  float64
	}{
		{"artifactfs_mounts", []string{"state", "mounted"}, 1},
		{"artifactfs_mount_info", []string{"mount", dir, "remote", url, "commit", commit.String()}, 1},
		{"artifactfs_mount_fetched_blobs", []string{"mount", dir}, 30},
		{"artifactfs_mount_files", []string{"mount", dir}, 30},
		{"artifactfs_mount_changed_paths", []string{"mount", dir}, 1},
		{"artifactfs_mount_changed_bytes", []string{"mount", dir}, 5},
		{"artifactfs_mount_operations_total", []string{"mount", dir, "op", "read"}, 30},
		{"artifactfs_mount_operations_fetched_total", []string{"mount", dir}, 1},
		{"artifactfs_operation_duration_seconds_count", []string{"op", "read"}, 30},
		{"artifactfs_fetch_wait_seconds_count", []string{"remote", url}, 1},
		{"artifactfs_fetch_request_seconds_count", []string{"remote", url, "class", "foreground"}, 1},
		{"artifactfs_remote_requests_total", []string{"remote", url}, 2},
		{"artifactfs_remote_received_blobs_total", []string{"remote", url}, 30},
		{"artifactfs_remote_received_bytes_total", []string{"remote", url}, 300},
		{"artifactfs_remote_up", []string{"remote", url}, 1},
		{"artifactfs_session_checkpoints", []string{"mount", dir}, 1},
		{"artifactfs_session_pushes_total", []string{"mount", dir}, 1},
		{"artifactfs_session_pushed_refs_total", []string{"mount", dir}, 2},
		{"artifactfs_session_pushed_bytes_total", []string{"mount", dir}, 300},
		{"artifactfs_session_push_seconds_total", []string{"mount", dir}, 1e-6},
		{"artifactfs_session_last_sync_seconds", []string{"mount", dir}, 1e9},
		{"artifactfs_session_push_failures_total", []string{"mount", dir}, 0},
		{"artifactfs_session_refused_refs_total", []string{"mount", dir}, 0},
		{"artifactfs_cache_blobs", nil, 30}, {"artifactfs_cache_bytes", nil, 300}, {"artifactfs_cache_quota_bytes", nil, 1},
		{"process_resident_memory_bytes", nil, 1 << 20}, {"process_open_fds", nil, 5}, {"go_goroutines", nil, 5},
	} {
		if got, ok := metricstest.Value(all, want.name, want.labels...); !ok || got < want.least {
			t.Errorf("metric %s%q is %v, want at least %v", want.name, want.labels, got, want.least)
		}
	}
	if strings.Contains(text, "hunter2") || strings.Contains(text, "user:") {
		t.Error("the metrics contain a secret")
	}
	before := w.daemonStatus()
	check(t, syscall.Kill(before.PID, syscall.SIGKILL))
	w.until("a successor serves", func() bool { return w.daemonStatus().PID != before.PID })
	w.until("the successor serves metrics", func() bool {
		c, err := net.Dial("unix", socket)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	w.until("the metrics of the successor have the mount", func() bool { // which it may still be taking over
		all, _ = w.scrape(socket)
		n, _ := metricstest.Value(all, "artifactfs_mount_info", "mount", dir)
		return n == 1
	})
	if n, _ := metricstest.Value(all, "artifactfs_takeovers_total"); n != 1 {
		t.Errorf("artifactfs_takeovers_total: got %v, want 1", n)
	}
	for _, bad := range []string{"0.0.0.0:1", "x", "unix:"} {
		if r := w.afs("daemon", "--metrics", bad); r.code != control.ExitUsage {
			t.Error(r)
		}
	}
}

// traced is a running trace command.
type traced struct {
	*world
	cmd *exec.Cmd

	mu     sync.Mutex
	events []control.TraceEvent
	stderr strings.Builder
}

func (w *world) trace(m mounted, args ...string) *traced {
	w.Helper()
	x := &traced{world: w, cmd: w.command(context.Background(), append([]string{"trace", m.Dir, "--json"}, args...)...)}
	stdout := must[io.ReadCloser](w)(x.cmd.StdoutPipe())
	x.cmd.Stderr = writerFunc(func(p []byte) (int, error) {
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.stderr.Write(p)
	})
	check2(w, x.cmd.Start())
	var reading sync.WaitGroup
	reading.Go(func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			var e control.TraceEvent
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				w.Errorf("trace printed %q", lines.Text())
			}
			x.mu.Lock()
			x.events = append(x.events, e)
			x.mu.Unlock()
		}
	})
	w.Cleanup(func() {
		x.cmd.Process.Signal(syscall.SIGINT)
		reading.Wait()
		if err := x.cmd.Wait(); err != nil {
			w.Errorf("trace: %v", err)
		}
	})
	return x
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// first returns the first event for which is returns true.
func (x *traced) first(is func(e control.TraceEvent) bool) (control.TraceEvent, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.events {
		if is(e) {
			return e, true
		}
	}
	return control.TraceEvent{}, false
}

// sees waits for an event. It calls act repeatedly until the event is traced, because the trace command does not
// announce its start.
func (x *traced) sees(what string, act func(), is func(e control.TraceEvent) bool) (e control.TraceEvent) {
	x.Helper()
	x.until("trace prints "+what, func() bool {
		act()
		var ok bool
		e, ok = x.first(is)
		return ok
	})
	return e
}

func TestTrace(t *testing.T) {
	w := newWorld(t)
	r := w.repo("traced.git", object.SHA1)
	files := map[string]gittest.File{}
	for i := range 20 {
		files[fmt.Sprintf("warm/file%d", i)] = gittest.File{Data: fmt.Appendf(nil, "content %d\n", i)}
	}
	files["cold/one file"] = gittest.File{Data: []byte(lines(100, "cold"))}
	w.commit(r, files)
	s := w.serve(gittest.ServerOptions{RTT: 20 * time.Millisecond})
	m := w.bare(s.URL("traced.git"))
	x := w.trace(m)
	next := 0
	x.sees("a read", func() {
		must[[]byte](t)(os.ReadFile(m.path(fmt.Sprintf("warm/file%d", next%20))))
		next++
	}, func(e control.TraceEvent) bool { return e.Op == "read" && strings.HasPrefix(e.Path, "warm/") })
	must[[]byte](t)(exec.Command("cat", m.path("cold/one file")).Output())
	cold := x.sees("a cold read", func() {},
		func(e control.TraceEvent) bool { return e.Path == "cold/one file" && e.Source == control.TraceFetched })
	if cold.Command != "cat" || cold.PID == 0 || cold.Wait < 20_000 || cold.Blobs < 1 || cold.Bytes < 100 ||
		time.Since(cold.Time) > patience {
		t.Errorf("trace of a cold read: got %+v, want one of cat with a wait, a blob and bytes", cold)
	}
	if _, is := x.first(func(e control.TraceEvent) bool { return e.Op == "mkdir" }); is {
		t.Error("trace printed an event that its options exclude")
	}

	// A trace of all events continues when the worker is killed.
	y := w.trace(m, "--all")
	n := 0
	y.sees("a directory", func() { check(t, os.Mkdir(m.path(fmt.Sprintf("made%d", n)), 0o755)); n++ },
		func(e control.TraceEvent) bool {
			return e.Op == "mkdir" && strings.HasPrefix(e.Path, "made") && e.Error == ""
		})
	check(t, os.Rename(m.path("made0"), m.path("moved")))
	y.sees("a rename", func() {},
		func(e control.TraceEvent) bool { return e.Op == "rename" && e.Path == "made0" && e.To == "moved" })
	if err := os.Remove(m.path("warm")); err == nil {
		t.Fatal("directory warm was removed although it is not empty")
	}
	y.sees("a failure", func() {},
		func(e control.TraceEvent) bool { return e.Op == "rmdir" && e.Path == "warm" && e.Error == "ENOTEMPTY" })
	before := w.daemonStatus()
	check(t, syscall.Kill(before.PID, syscall.SIGKILL))
	y.sees("changes after the kill", func() { check(t, os.Mkdir(m.path(fmt.Sprintf("after%d", n)), 0o755)); n++ },
		func(e control.TraceEvent) bool { return e.Op == "mkdir" && strings.HasPrefix(e.Path, "after") })
	for _, said := range []string{fmt.Sprintf("process %d, which served the mount, has exited", before.PID),
		"has taken over the mount"} {
		w.until("trace prints: "+said, func() bool {
			y.mu.Lock()
			defer y.mu.Unlock()
			return strings.Contains(y.stderr.String(), said)
		})
	}
	if r := w.afs("trace", w.root); r.code != control.ExitNotMounted {
		t.Error(r)
	}
}

// A trace command that is stopped does not block the mount, and prints how many events were lost when it continues.
func TestTraceLosesWhatNobodyTakes(t *testing.T) {
	w := newWorld(t)
	r := w.repo("slow.git", object.SHA1)
	w.commit(r, map[string]gittest.File{"file": {Data: []byte("x")}})
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("slow.git"))
	x := w.trace(m, "--all")
	made := 0
	make := func() {
		path := m.path(fmt.Sprintf("%s%d", strings.Repeat("x", 200), made))
		made++
		check(t, os.Mkdir(path, 0o755))
		check(t, os.Remove(path))
	}
	x.sees("anything", make, func(e control.TraceEvent) bool { return e.Op == "mkdir" })
	check(t, x.cmd.Process.Signal(syscall.SIGSTOP))
	for range 5000 { // half a dozen requests each
		make()
	}
	check(t, x.cmd.Process.Signal(syscall.SIGCONT))
	w.until("trace prints the number of lost events", func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		return strings.Contains(x.stderr.String(), " events lost, because the output was read too slowly")
	})
	x.mu.Lock()
	x.events = nil
	x.mu.Unlock()
	x.sees("what comes later", make, func(e control.TraceEvent) bool { return e.Op == "rmdir" })
}

func TestStatusIsWatched(t *testing.T) {
	w := newWorld(t)
	r := w.repo("watched.git", object.SHA1)
	w.commit(r, map[string]gittest.File{"file": {Data: []byte("x")}})
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("watched.git"))
	cmd := w.command(context.Background(), "status", "--watch", "0.1", m.Dir)
	out := must[io.ReadCloser](t)(cmd.StdoutPipe())
	check(t, cmd.Start())
	lines := bufio.NewScanner(out)
	var got []string
	for n := 0; len(got) < 20 && lines.Scan(); n++ {
		got = append(got, lines.Text())
		os.Mkdir(m.path(fmt.Sprintf("d%d", n)), 0o755)
		if f := strings.Fields(lines.Text()); n > 1 && f[1] != "0" && f[1] != "-" && strings.HasSuffix(lines.Text(), m.Dir) {
			break
		}
	}
	check(t, cmd.Process.Signal(syscall.SIGINT))
	io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if len(got) < 3 || len(got) == 20 || !strings.Contains(got[0], "OPS/S") {
		t.Errorf("output of status --watch: got %q, want a header and at least two lines", got)
	}
	// The status of the daemon, as text and as JSON.
	d := w.daemonStatus()
	if people := w.ok("status"); d.PID == 0 || d.Supervisor == 0 || d.Version == "" ||
		!strings.Contains(people, fmt.Sprintf("(pid %d, supervisor %d)", d.PID, d.Supervisor)) {
		t.Errorf("status of the daemon: got %+v and in words\n%s", d, people)
	}
}

func TestCacheStatAndGC(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"one.git", "two.git"} {
		r := w.repo(name, object.SHA1)
		w.commit(r, map[string]gittest.File{"small": {Data: []byte(lines(100, name))},
			"big": {Data: []byte(strings.Repeat(name, 1<<19))}})
	}
	s := w.serve(gittest.ServerOptions{})
	one, two := w.bare(s.URL("one.git")), w.bare(s.URL("two.git"))
	for _, m := range []mounted{one, two} {
		must[[]byte](t)(os.ReadFile(m.path("small")))
		must[[]byte](t)(os.ReadFile(m.path("big")))
	}
	check(t, os.WriteFile(one.path("work"), []byte("unique"), 0o644))
	w.git(one.Dir, "add", "work")
	w.git(one.Dir, "-c", "user.name=a", "-c", "user.email=b@c", "commit", "-qm", "work")
	stat := func() (st space.Report) {
		t.Helper()
		check(t, json.Unmarshal([]byte(w.ok("cache", "stat", "--json")), &st))
		return st
	}
	gc := func(args ...string) (freed space.Freed) {
		t.Helper()
		check(t, json.Unmarshal([]byte(w.ok(append([]string{"cache", "gc", "--json"}, args...)...)), &freed))
		return freed
	}
	var before space.Report
	w.until("sizes are written", func() bool {
		before = stat()
		return len(before.Remotes) == 2 && before.Remotes[0].Blobs == 2 && before.Remotes[1].Blobs == 2
	})
	if before.Blobs.Blobs != 4 || len(before.Remotes) != 2 || len(before.Mounts) != 2 {
		t.Fatalf("cache before gc: got %+v, want 4 blobs, 2 remotes, 2 mounts", before)
	}
	for _, r := range before.Remotes {
		if r.Blobs != 2 || r.BlobBytes < 1<<19 || r.Packs == 0 || r.Objects < 2 || !r.Needed || !r.Open ||
			!strings.HasSuffix(r.Remote, ".git") {
			t.Errorf("cache of a remote: got %+v, want 2 blobs, packs, objects, and that it is open and needed", r)
		}
	}
	for _, m := range before.Mounts {
		if m.Mounted != true || m.Dir == one.Dir && m.Objects < 3 || m.Dir == two.Dir && m.Objects != 0 {
			t.Errorf("cache of a mount: got %+v, want it mounted, with objects only in the one with a commit", m)
		}
	}
	if f := gc("--quota", "1M", "--dry-run"); f.Bytes == 0 || f.Blobs != 2 && f.Blobs != 4 || len(f.Removed) > 0 {
		t.Errorf("gc --quota 1M --dry-run: got %+v, want 2 or 4 blobs and no removed remote", f)
	}
	if now := stat(); now.Blobs.Blobs != before.Blobs.Blobs {
		t.Error("gc --dry-run removed blobs")
	}
	if f := gc("--quota", "1M"); f.Blobs < 2 || f.Left > 1<<20 {
		t.Errorf("gc --quota 1M: got %+v, want at least 2 blobs removed and at most 1 MiB left", f)
	}
	for _, m := range []mounted{one, two} { // the removed contents are fetched again
		if got := must[[]byte](t)(os.ReadFile(m.path("small"))); len(got) == 0 {
			t.Error("a file is empty after its contents were removed from the cache")
		}
	}
	w.unmount(two)
	if f := gc("--dry-run"); len(f.Removed) != 1 || f.Removed[0].Remote != s.URL("two.git") {
		t.Errorf("gc --dry-run after an unmount: got %+v, want the store of two.git", f)
	}
	w.unmount(one)
	w.until("the daemon has closed both stores", func() bool {
		for _, r := range stat().Remotes {
			if r.Open {
				return false
			}
		}
		return true
	})
	if f := gc(); len(f.Removed) != 1 || f.Removed[0].Remote != s.URL("two.git") {
		t.Errorf("gc after an unmount: got %+v, want the store of two.git removed", f)
	}
	after := stat()
	if len(after.Remotes) != 1 || after.Remotes[0].Remote != s.URL("one.git") || len(after.Mounts) != 1 ||
		after.Mounts[0].Dir != one.Dir {
		t.Errorf("cache after gc: got %+v, want one.git and its mount", after)
	}
	w.ok("mount", s.URL("one.git"), one.Dir)
	if got := must[[]byte](t)(os.ReadFile(one.path("work"))); string(got) != "unique" {
		t.Errorf("read work: got %q, want \"unique\"", got)
	}
	if log := w.git(one.Dir, "log", "--format=%s", "-1"); strings.TrimSpace(log) != "work" {
		t.Errorf("subject of the last commit: got %q, want \"work\"", log)
	}
	w.ok("mount", s.URL("two.git"), two.Dir, "--wait", "all")
}

func TestDoctorLooksAtEverything(t *testing.T) {
	w := newWorld(t)
	r := w.repo("sound.git", object.SHA1)
	w.commit(r, map[string]gittest.File{"file": {Data: []byte("x")}})
	s := w.serve(gittest.ServerOptions{})
	m := w.bare(s.URL("sound.git"))
	sound := w.afs("doctor")
	for _, want := range []string{"kernel: Linux ", "git: version ", w.state + ": ", "daemon: answers at ",
		"mounted at " + m.Dir,
		s.URL("sound.git") + ": store is complete", s.URL("sound.git") + ": protocol version 2, filter, shallow, ",
		"wants by any object ID"} {
		if !strings.Contains(sound.stdout, want) {
			t.Errorf("output does not contain %q", want)
		}
	}
	if sound.code != 0 || strings.Contains(sound.stdout, "bad ") {
		t.Errorf("doctor of a sound state directory: %s", sound)
	}
	plain := w.serve(gittest.ServerOptions{})
	plain.Inject(gittest.Fault{Kind: gittest.NoFilter})
	if r := w.afs("doctor", plain.URL("sound.git")); r.code != 0 ||
		!strings.Contains(r.stdout, "warn  "+plain.URL("sound.git")+": no filter") {
		t.Error(r)
	}
	gone := w.serve(gittest.ServerOptions{})
	url := gone.URL("sound.git")
	gone.Close()
	if r := w.afs("doctor", url); r.code != control.ExitFailed || !strings.Contains(r.stdout, "bad   "+url+": ") {
		t.Error(r)
	}
	if r := w.afs("doctor", url, "--offline"); r.code != 0 {
		t.Error(r)
	}
	s.Close() // the remote of an existing mount
	if r := w.afs("doctor"); r.code != 0 || !strings.Contains(r.stdout, "warn  "+s.URL("sound.git")+": ") {
		t.Error(r)
	}
	w.unmount(m)
	w.until("the store is closed", func() bool { return !strings.Contains(w.ok("cache", "stat"), "mounted") })

	// A pack is damaged, killed processes have left files, and other users can read the state directory.
	packs := must[[]string](t)(filepath.Glob(filepath.Join(w.storeGit(), "objects", "pack", "*.pack")))
	if len(packs) == 0 {
		t.Fatal("the store has no packs")
	}
	pack := must[[]byte](t)(os.ReadFile(packs[0]))
	pack[len(pack)-1] ^= 1
	check(t, os.Chmod(packs[0], 0o644))
	check(t, os.WriteFile(packs[0], pack, 0o644))
	junk := filepath.Join(filepath.Dir(packs[0]), "pack-1234.idx")
	check(t, os.WriteFile(junk, nil, 0o644))
	check(t, os.Chmod(filepath.Join(w.state, "blobs"), 0o755))
	damaged := w.afs("doctor", "--offline")
	for _, want := range []string{"no session needs this store\n      --fix removes the store",
		junk + ": pack of this file is missing\n      --fix removes the file",
		"other users can access the directory (mode 755)"} {
		if !strings.Contains(damaged.stdout, want) {
			t.Errorf("output does not contain %q", want)
		}
	}
	if damaged.code != control.ExitFailed {
		t.Errorf("doctor of a damaged state directory: %s", damaged)
	}
	if r := w.afs("doctor", "--offline", "--fix"); r.code != 0 || strings.Count(r.stdout, "fixed ") < 3 {
		t.Error(r)
	}
	if r := w.afs("doctor", "--offline"); r.code != 0 {
		t.Error(r)
	}
}
