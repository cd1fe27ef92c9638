package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/sessions"
	"github.com/artifactfs/artifactfs/control"
)

func TestCheckpointPrintsItsID(t *testing.T) {
	a, s, _ := newWork(t)
	s.set(func() {
		s.checkpoint = control.CheckpointReply{Checkpoint: control.Checkpoint{ID: checkpointA, Excluded: 4, Synced: true},
			Made: true, Paused: 0.31, Took: 12}
	})
	s.set(func() {
		s.checkpoint.LeftOut = []control.LeftOut{{Path: "out/", Why: "ignored"}, {Path: "app/.env", Why: "secret"},
			{Path: "core", Why: "size", Size: 60 << 20}}
	})
	r := a.run("checkpoint", "app/sub", "-m", "before it", "--pin", "good", "--sync")
	if r.code != 0 || r.stdout != checkpointA+"\n" ||
		r.stderr != "artifactfs: left out: app/.env (looks like a secret), core (60.0 MiB) and 1 more\n" {
		t.Errorf("checkpoint with a message and a pin: got %+v", r)
	}
	if q := last[control.CheckpointRequest](t, s); q != (control.CheckpointRequest{Dir: a.dir + "/app",
		Message: "before it", Pin: "good", Sync: true}) {
		t.Errorf("request of the command: got %+v", q)
	}
	s.set(func() {
		s.checkpoint.Synced = false
	})
	if r := a.run("checkpoint", "app", "--sync"); r.code != control.ExitUnsynced || r.stdout != checkpointA+"\n" ||
		!strings.Contains(r.stderr, "not on the session remote yet\nhint: run artifactfs status") {
		t.Errorf("checkpoint --sync without the session remote: got %+v", r)
	}
	if r := a.run("checkpoint"); r.code != control.ExitNotMounted ||
		!strings.Contains(r.stderr, "no artifactfs mount at this directory") {
		t.Errorf("checkpoint outside of a mount: got %+v", r)
	}
}

func TestSyncTellsWhatIsMissing(t *testing.T) {
	a, s, _ := newWork(t)
	s.set(func() {
		s.sync = control.SyncReply{Dir: a.dir + "/app",
			Session: control.SessionStatus{Name: "work", SessionRemote: "https://127.0.0.1/work", Mode: "shared"}}
	})
	if got := a.ok("sync", "app"); got != "session work is on https://127.0.0.1/work\n" {
		t.Errorf("sync printed %q", got)
	}
	s.set(func() {
		s.sync.Session.Pending, s.sync.Session.Error = 3, "connection refused"
	})
	r := a.run("sync", "app", "--timeout", "2s")
	want := "artifactfs: sync " + a.dir +
		"/app: 3 refs not on the session remote yet: connection refused\nhint: the changes are stored on this host, and the push is retried automatically\n"
	if r.code != control.ExitUnsynced || r.stdout != "" || r.stderr != want {
		t.Errorf("sync with pending refs: got %+v", r)
	}
	if q := last[control.SyncRequest](t, s); q.Timeout != 2*time.Second {
		t.Errorf("request of the command: got %+v", q)
	}
	if r := a.run("sync", "app", "--json"); r.code != control.ExitUnsynced || !strings.Contains(r.stdout, `"pending":3`) {
		t.Errorf("sync --json with pending refs: got %+v", r)
	}
}

func TestSessionsAreNamedByDirectoryOrName(t *testing.T) {
	a, s, _ := newWork(t)
	a.keep(t, "old", "/gone/old", 1)
	for args, want := range map[string]string{
		"log app": a.dir + "/app", "log work": a.dir + "/app", "log -C app/sub": a.dir + "/app", "log old": "old",
		"log /gone/old": "old", "log never-seen": "never-seen",
	} {
		a.ok(append([]string{"session"}, strings.Fields(args)...)...)
		if q := last[control.SessionLogRequest](t, s); q.Of != want {
			t.Errorf("session named by %s: got request for %s, want %s", args, q.Of, want)
		}
	}
	cmd := a.command("session", "log", "old")
	cmd.Dir = filepath.Join(a.dir, "app") // where the name could also be a path
	if out, err := cmd.CombinedOutput(); err != nil || last[control.SessionLogRequest](t, s).Of != "old" {
		t.Errorf("session log old: %v\n%s", err, out)
	}
	for _, bad := range []string{"/nowhere", "./x"} {
		if r := a.run("session", "log", bad); r.code != control.ExitNotMounted ||
			!strings.Contains(r.stderr, "no artifactfs mount at this directory") {
			t.Errorf("session log of a directory that is not mounted: got %+v", r)
		}
	}
	if r := a.run("session", "log", "a b"); r.code != control.ExitUsage ||
		!strings.Contains(r.stderr, "argument is neither a directory nor a valid session name") {
		t.Errorf("session log of an invalid name: got %+v", r)
	}
	r := a.run("session", "log")
	if r.code != control.ExitNotMounted || !strings.Contains(r.stderr,
		"current directory is not in a mount\nhint: add -C DIR|SESSION; artifactfs session list") {
		t.Errorf("session log outside of a mount: got %+v", r)
	}
	if r := a.run("session", "restore", "@", "-C", "old"); r.code != control.ExitNotMounted ||
		!strings.Contains(r.stderr, "hint: run artifactfs session resume old DIR to mount it") {
		t.Errorf("session restore of a session that is not mounted: got %+v", r)
	}
}

func TestSessionTables(t *testing.T) {
	a, s, _ := newWork(t)
	now := time.Now()
	minutes := func(n int) time.Time { return now.Add(-time.Duration(n)*time.Minute - time.Second) }
	at := minutes(5)
	s.set(func() {
		s.list = []control.SessionInfo{
			{SessionStatus: control.SessionStatus{Name: "work", State: "active", Checkpoints: 12, LastCheckpointAt: &at,
				Pending: 2}, Remote: "https://127.0.0.1/app", Dir: "/w", Mounted: true},
			{SessionStatus: control.SessionStatus{Name: "old", State: "paused"}, Remote: "https://127.0.0.1/app", Dir: "/o",
				History: []control.Transition{{State: "active"}, {State: "paused", Reason: "interrupted"}}},
		}
	})
	want := `SESSION  STATE                 CHECKPOINTS  LAST       PENDING  DIR  REMOTE
old      paused (interrupted)  0            -          0        /o   https://127.0.0.1/app
work     active                12           5 min ago  2        /w   https://127.0.0.1/app
`
	if got := a.ok("session", "list"); got != want {
		t.Errorf("session list printed\n%s", got)
	}
	s.set(func() {
		s.checkpoints = []control.Checkpoint{
			{ID: checkpointB, Time: minutes(3), Reason: "manual", Changed: 2, Bytes: 2048, Branch: "main",
				Message: "two\x1b[31m", Pins: []string{"good"}},
			{ID: checkpointA, Time: minutes(180), Reason: "idle", Changed: 1, Bytes: 10, Head: strings.Repeat("ab", 20),
				Synced: true},
		}
	})
	want = `ID                           MADE       WHY     CHANGED  NEW      BRANCH        MESSAGE
01J9ZK4W0R3N5P7Q9S1V2X4Y60*  3 min ago  manual  2        2.0 KiB  main          [good] two [31m
01J9ZK3V9Q2M4N6P8R0T1V3X5Z   3 h ago    idle    1        10 B     abababababab
`
	if got := a.ok("session", "log", "app", "-n", "2"); got != want {
		t.Errorf("session log printed\n%s", got)
	}
	if q := last[control.SessionLogRequest](t, s); q.Limit != 2 {
		t.Errorf("request of the command: got %+v", q)
	}
	if r := a.run("__complete", "session", "show", "-C", "app", ""); !strings.HasPrefix(r.stdout,
		"good\t3 min ago, two [31m\n"+checkpointB+"\t3 min ago, two [31m\n"+checkpointA+"\t3 h ago, idle\n:36\n") {
		t.Errorf("completion printed %q", r.stdout)
	}
	s.set(func() {
		s.show = control.SessionShowReply{Checkpoint: s.checkpoints[0],
			Changes: []control.PathChange{{Path: "a b", Status: "M"}}, LeftOut: []control.LeftOut{{Path: ".env", Why: "secret"}}}
	})
	s.set(func() {
		s.show.Session, s.show.Lane, s.show.Commit, s.show.Excluded, s.show.Head = "work", "main", strings.Repeat("12", 20),
			3, strings.Repeat("34", 20)
	})
	got := a.ok("session", "show", "good", "-C", "app")
	for _, want := range []string{checkpointB + "\n  message   two [31m\n", " (3 min ago), manual\n",
		"  session   work, lane main\n  pins      good\n  head      main at 343434343434\n",
		"  pushed    not yet\n", "changed since the session started (1)\n  M  a b\n",
		"left out (3)\n  .env (looks like a secret)\n  ... and 2 more\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("session show does not print %q:\n%s", want, got)
		}
	}
}

func TestSessionDiff(t *testing.T) {
	a, s, _ := newWork(t)
	s.set(func() {
		s.diff = control.SessionDiffReply{Patch: "diff --git a/x b/x\n",
			Changes: []control.PathChange{{Path: "x", Status: "M", Added: 3, Removed: 1}, {Path: "y", Status: "A", Added: -1}}}
	})
	for args, want := range map[string]struct {
		out string
		ask control.SessionDiffRequest
	}{
		"":  {"diff --git a/x b/x\n", control.SessionDiffRequest{Patch: true}},
		"@": {"diff --git a/x b/x\n", control.SessionDiffRequest{A: "@", Patch: true}},
		"@~1 @ --stat": {"M  x  +3  -1\nA  y  binary\n2 paths, +3 -1\n",
			control.SessionDiffRequest{A: "@~1", B: "@", Stat: true}},
		"@ --name-only":    {"x\ny\n", control.SessionDiffRequest{A: "@"}},
		"@ --name-status ": {"M\tx\nA\ty\n", control.SessionDiffRequest{A: "@"}},
	} {
		got := a.ok(append([]string{"session", "diff", "-C", "app"}, strings.Fields(args)...)...)
		want.ask.Of = a.dir + "/app"
		if q := last[control.SessionDiffRequest](t, s); got != want.out || q != want.ask {
			t.Errorf("%s printed %q and sent the request %+v", args, got, q)
		}
	}
}

func TestSessionRestore(t *testing.T) {
	a, s, _ := newWork(t)
	s.set(func() {
		s.restore = control.RestoreReply{Dir: a.dir + "/app",
			Checkpoint: control.Checkpoint{ID: checkpointA, Time: time.Now()}, Before: &control.Checkpoint{ID: checkpointB},
			Changes: []control.PathChange{{Path: "x", Status: "M"}}, Kept: []string{"busy"}}
	})
	r := a.run("session", "restore", checkpointA, "./x", "../y", "-C", "app/sub")
	want := "changed at the same time, so left unchanged: busy\n1 path restored to " + checkpointA + " (just now)\n"
	if r.code != 0 || r.stdout != want ||
		r.stderr != "artifactfs: saved the previous state (artifactfs session restore -C "+a.dir+"/app "+checkpointB+
			" undoes the restore)\n" {
		t.Errorf("session restore: got %+v", r)
	}
	if q := last[control.RestoreRequest](t, s); !slices.Equal(q.Paths, []string{"sub/x", "y"}) || q.Staged || q.DryRun {
		t.Errorf("request of the command: got %+v", q)
	}
	for paths, want := range map[string]string{"": "", ".": "", a.dir + "/app/z": "z", "app": "app"} {
		a.run(append([]string{"session", "restore", checkpointA, "-C", "work", "--staged"}, strings.Fields(paths)...)...)
		if q := last[control.RestoreRequest](t, s); strings.Join(q.Paths, ",") != want || !q.Staged {
			t.Errorf("restore of %q sent the request %+v", paths, q)
		}
	}
	if r := a.run("session", "restore", checkpointA, "../../x", "-C", "app/sub"); r.code != control.ExitUsage ||
		!strings.Contains(r.stderr, "path is not in the mount") {
		t.Errorf("session restore of a path outside of the mount: got %+v", r)
	}
	s.set(func() {
		s.restore.Before, s.restore.DryRun = nil, true
	})
	if got := a.ok("session", "restore", checkpointA, "-C", "app",
		"-n"); got != "would change (1)\n  M  x\n1 path would be restored to "+checkpointA+" (just now)\n" {
		t.Errorf("session restore -n printed %q", got)
	}
}

func TestSessionForkAndResume(t *testing.T) {
	a, s, f := newWork(t)
	got := a.ok("session", "fork", "@~1", "copy", "-C", "app", "--session", "copy", "--checkpoint", "interval=1m")
	if !strings.HasPrefix(got, "forked session copy: mounted https://127.0.0.1/app at "+a.dir+"/copy (main, 3 files, ") {
		t.Errorf("session fork printed %q", got)
	}
	q := last[control.ForkRequest](t, s)
	if q.Of != a.dir+"/app" || q.ID != "@~1" || q.Mount.Dir != a.dir+"/copy" || q.Mount.Session != "copy" ||
		q.Mount.Remote != "https://127.0.0.1/app" || q.Mount.SessionOptions.Policy != "interval=1m" {
		t.Errorf("request of the command: got %+v", q)
	}
	for flags, want := range map[string]control.NewHead{"-b fix": {Branch: "fix"}, "-B fix": {Branch: "fix", Reset: true},
		"--detach": {Detach: true}} {
		got := a.ok(append([]string{"session", "fork", "copy", "-C", "app"}, strings.Fields(flags)...)...)
		if q := last[control.ForkRequest](t, s); q.Head == nil || *q.Head != want ||
			strings.HasPrefix(got, "forked session copy on branch fix: mounted ") == want.Detach {
			t.Errorf("session fork %s printed %q and sent the head %+v", flags, got, q.Head)
		}
	}
	for _, flags := range []string{"-b fix --detach", "-b fix -B fix", "-b fix --read-only", "-b ", "-b a..b"} {
		if r := a.run(append([]string{"session", "fork", "copy", "-C", "app"}, strings.Split(flags, " ")...)...); r.code != 2 {
			t.Errorf("session fork %s: got %+v", flags, r)
		}
	}
	s.set(func() {
		s.list = []control.SessionInfo{{SessionStatus: control.SessionStatus{Name: "old"}, Remote: "https://127.0.0.1/other",
			Dir: a.dir + "/there"},
			{SessionStatus: control.SessionStatus{Name: "work"}, Dir: "/w", Mounted: true}}
	})
	for args, want := range map[string]string{"old": "https://127.0.0.1/other " + a.dir + "/there ",
		"old here":                               "https://127.0.0.1/other " + a.dir + "/here ",
		"far --session-remote w.git --take-over": " " + a.dir + "/far " + a.dir + "/w.git"} {
		if r := a.run(append([]string{"session", "resume"}, strings.Fields(args)...)...); r.code != 0 &&
			!strings.HasPrefix(args, "far") {
			t.Errorf("session resume %s: got %+v", args, r)
			continue
		}
		f.mu.Lock()
		var r control.MountRequest
		if len(f.requests) > 0 {
			r = f.requests[len(f.requests)-1]
		}
		f.mu.Unlock()
		if got := fmt.Sprintf("%s %s %s", r.Remote, r.Dir, r.SessionOptions.Remote); got != want ||
			r.Session != strings.Fields(args)[0] {
			t.Errorf("%s sent the request %+v", args, r)
		}
	}
	if r := a.run("session", "resume", "work"); r.code != control.ExitFailed ||
		!strings.Contains(r.stderr, "resume session work: session is mounted at /w") {
		t.Errorf("session resume of a mounted session: got %+v", r)
	}
	if r := a.run("session", "resume", "none"); r.code != control.ExitNotMounted ||
		!strings.Contains(r.stderr, "hint: add --session-remote URL") {
		t.Errorf("session resume of an unknown session: got %+v", r)
	}
}

func TestSessionNoteAndRecord(t *testing.T) {
	a, s, _ := newWork(t)
	s.set(func() {
		s.note = control.SessionNoteReply{Commit: strings.Repeat("12", 20), Ref: "refs/notes/agent", Redacted: 2}
	})
	for args, want := range map[string]string{`{"a":1}`: " agent {\"a\":1}",
		`HEAD~1 {"a":1} --ref=x`: "HEAD~1 x {\"a\":1}", "HEAD -": "HEAD agent {\"b\":2}", "-": " agent {\"b\":2}",
		"HEAD": "HEAD agent {\"b\":2}", "": " agent {\"b\":2}"} {
		cmd := a.command(append([]string{"session", "note", "-C", "app"}, strings.Fields(args)...)...)
		cmd.Stdin = strings.NewReader("{\"b\":2}\n")
		out, err := cmd.CombinedOutput()
		q := last[control.SessionNoteRequest](t, s)
		if got := q.Commit + " " + q.Ref + " " + string(q.JSON); err != nil || got != want ||
			!strings.Contains(string(out), "noted on 121212121212 in refs/notes/agent\n") ||
			!strings.Contains(string(out), "2 texts looked like a secret") {
			t.Errorf("%s: got a request for %s, %v\n%s", args, got, err, out)
		}
	}
	record := func(text string, args ...string) string {
		cmd := a.command(append([]string{"session", "record", "-C", "app"}, args...)...)
		cmd.Stdin = strings.NewReader(text)
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	if got :=
		record("{\"a\":1}\n\n  {\"b\":2}\n"); got != "artifactfs: 1 text looked like a secret and was removed\nrecorded 2 lines in refs/afs/transcript/work\n" {
		t.Errorf("record of two lines printed %q", got)
	}
	if q := last[control.SessionRecordRequest](t, s); !slices.Equal(q.Lines, []string{`{"a":1}`, `{"b":2}`}) {
		t.Errorf("request of the command: got %+v", q)
	}
	if got := record("{\"a\":1}\n[2]\n"); !strings.Contains(got,
		"recorded 1 line before that\nartifactfs: record line 2: line is not a JSON object\n") {
		t.Errorf("record of a line that is not an object printed %q", got)
	}
	if got := record(""); got != "nothing to record\n" {
		t.Errorf("record without input printed %q", got)
	}
	if got := record(`{"a":"` + strings.Repeat("x", sessions.MaxRecordLine) + `"}`); !strings.Contains(got,
		"line is longer than 256 KiB") {
		t.Errorf("record of a line that is too long printed %q", got)
	}
}

// Lines are recorded while the program that writes them still runs.
func TestRecordDoesNotWaitForTheEnd(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	wrote := make(chan []string, 10)
	done := make(chan error, 1)
	go func() {
		done <- sessions.Batches(t.Context(), read, func(lines []string) error { wrote <- lines; return nil })
	}()
	fmt.Fprintln(write, `{"a":1}`)
	if got := await(t, wrote); !slices.Equal(got, []string{`{"a":1}`}) {
		t.Errorf("recorded lines: got %q", got)
	}
	fmt.Fprint(write, "{\"b\":2}\n{\"c\":3}")
	write.Close()
	if err := await(t, done); err != nil {
		t.Error(err)
	}
	close(wrote)
	n := 0
	for lines := range wrote {
		n += len(lines)
	}
	if n != 2 {
		t.Errorf("further recorded lines: got %d", n)
	}
}

func TestSessionStates(t *testing.T) {
	a, s, _ := newWork(t)
	a.env = []string{"ARTIFACTFS_ACTOR=robot"}
	for args, want := range map[string]control.SessionSetRequest{
		"pin good":           {Pin: "good", ID: "@"},
		"pin @~1 good":       {Pin: "good", ID: "@~1"},
		"unpin good":         {Pin: "good", Unpin: true},
		"pause -m gone":      {State: "paused", Reason: "gone"},
		"close -m merged":    {State: "closed", Reason: "merged"},
		"archive":            {State: "archived"},
		"reopen --message=x": {State: "open", Reason: "x"},
	} {
		words := strings.Fields(args)
		got := a.ok(append([]string{"session", words[0], "-C", "app"}, words[1:]...)...)
		want.Of, want.Actor = a.dir+"/app", "robot"
		if q := last[control.SessionSetRequest](t, s); q != want || !strings.HasSuffix(got, " work\n") {
			t.Errorf("%s printed %q and sent the request %+v", args, got, q)
		}
	}
}

func TestSessionGC(t *testing.T) {
	a, s, _ := newWork(t)
	s.set(func() {
		s.gc = control.SessionGCReply{Kept: 4,
			Dropped: []control.Checkpoint{{ID: checkpointA, Time: time.Now(), Reason: "idle", Synced: true}}, Bytes: 3 << 20}
	})
	if got := a.ok("session", "gc", "work", "--keep-all", "1.5d", "--keep-daily",
		"0"); got != "dropped 1 checkpoint, kept 4, 3.0 MiB became free\n" {
		t.Errorf("session gc printed %q", got)
	}
	if q := last[control.SessionGCRequest](t, s); q.All != 36*time.Hour || q.Daily != 1 || q.DryRun {
		t.Errorf("request of the command: got %+v", q)
	}
	if got := a.ok("session", "gc", "app", "-n"); !strings.Contains(got, checkpointA) ||
		!strings.HasSuffix(got, "would drop 1 checkpoint and keep 4\n") {
		t.Errorf("session gc -n printed %q", got)
	}
	if q := last[control.SessionGCRequest](t, s); q.All != 0 || q.Daily != 0 || !q.DryRun {
		t.Errorf("request of the command: got %+v", q)
	}
	for _, bad := range []string{"x", "-1d", "1e9d", "NaNd"} {
		if r := a.run("session", "gc", "app", "--keep-all", bad); r.code != control.ExitUsage ||
			!strings.Contains(r.stderr, "invalid duration; examples are 7d and 12h") {
			t.Errorf("session gc --keep-all %s: got %+v, want a usage error", bad, r)
		}
	}
}

func TestUnmountOfWhatIsNotCarriedAway(t *testing.T) {
	a, _, f := newWork(t)
	dir := a.dir + "/app"
	f.set(func() {
		f.kept = map[string]control.UnmountReply{dir: {ID: "work", Dir: dir, Session: "work", Kept: 2, Pending: 3,
			Why: "a: disk full\nb: too"}}
	})
	r := a.run("unmount", "app", "--timeout", "0")
	want := "artifactfs: unmount " + dir +
		": 3 refs not on the session remote yet: a: disk full; b: too\nhint: the changes are stored on this host and will be pushed when session work is mounted again\n"
	if r.code != control.ExitUnsynced || r.stdout != "unmounted "+dir+"\n" || !strings.HasSuffix(r.stderr, want) {
		t.Errorf("unmount with pending refs: got %+v", r)
	}
}

func TestWhatIsDiscardedIsNotMissing(t *testing.T) {
	a, _, f := newWork(t)
	dir := a.dir + "/app"
	f.set(func() {
		f.kept = map[string]control.UnmountReply{dir: {ID: "work", Dir: dir, Pending: 1, Why: "moved"}}
	})
	if got := a.ok("unmount", "app", "--discard", "--yes"); got != "unmounted "+dir+"\n" {
		t.Errorf("unmount --discard printed %q", got)
	}
}

func TestMountCarriesItsFlags(t *testing.T) {
	a := newAfs(t)
	f := newFakeDaemon()
	serve(t, control.DaemonSocket(a.state), f)
	a.env = []string{"ARTIFACTFS_SESSION_REMOTE=w.git", "ARTIFACTFS_CHECKPOINT=before-risk",
		"ARTIFACTFS_INCLUDE=dist/**,.env.test", "ARTIFACTFS_MAX_FILE_SIZE=1G"}
	a.ok("mount", "h:r.git", "m", "--take-over", "--exclude", "*.iso", "--no-deny-list")
	a.env = nil
	a.ok("mount", "h:r.git", "n", "--session", "s", "--at", "@~1", "--session-remote", "https://127.0.0.1/w")
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.requests[0].SessionOptions
	if s.Remote != a.dir+"/w.git" || s.Policy != control.PolicyBeforeRisk || !s.TakeOver || !s.NoDenyList ||
		s.MaxFileSize != 1<<30 ||
		!slices.Equal(s.Include, []string{"dist/**", ".env.test"}) || !slices.Equal(s.Exclude, []string{"*.iso"}) {
		t.Errorf("session options of the mount request: %+v", s)
	}
	if r := f.requests[1]; r.At != "@~1" || !r.ReadOnly || r.SessionOptions.Remote != "https://127.0.0.1/w" {
		t.Errorf("mount request at a checkpoint: %+v", r)
	}
}

func TestStatusOfASession(t *testing.T) {
	a := newAfs(t)
	m := mountStatus("/m")
	at := time.Now().Add(-90 * time.Second)
	m.Session = control.SessionStatus{Name: "work", SessionRemote: "https://127.0.0.1/w", Mode: "shared", Pending: 2,
		Error: "refused", State: "active", Lane: "main-host-1a2b",
		Diverged: []string{"refs/heads/main"},
		DivergedRefs: []control.DivergedRef{{Ref: "refs/heads/main", RemoteRef: "refs/heads/afs/work/main",
			KeptRef: "refs/afs/diverged/work/heads/main"}}, Branches: "afs/work/{branch}", Checkpoints: 7,
		LastCheckpoint: checkpointA, LastCheckpointAt: &at, Dirty: true, LastSync: &at, Sent: 14839, Received: 6419}
	serve(t, control.DaemonSocket(a.state), newFakeDaemon(m))
	got := a.ok("status", "/m")
	for _, want := range []string{
		"  session   work, lane main-host-1a2b\n  latest    checkpoint " + checkpointA +
			", 90 s ago, changed since; 7 checkpoints\n",
		"  pushed    to https://127.0.0.1/w, 2 refs pending, 90 s ago\n  traffic   14.5 KiB sent, 6.3 KiB received\n  push      refused\n",
		"  branches  afs/work/{branch} on the session remote\n",
		"  diverged  refs/heads/afs/work/main was changed by another session; the session remote has this session's commits as refs/afs/diverged/work/heads/main; to merge both, run in the mount: git fetch https://127.0.0.1/w refs/heads/afs/work/main && git merge FETCH_HEAD\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("status does not print %q:\n%s", want, got)
		}
	}
}

func TestSessionDelete(t *testing.T) {
	a, s, _ := newWork(t)
	none := a.run("session", "delete", "app")
	if none.code != control.ExitUsage || !strings.Contains(none.stderr, "must be confirmed") ||
		!strings.Contains(none.stderr, "--yes") {
		t.Errorf("session delete without --yes: got %+v", none)
	}
	r := a.run("session", "delete", "elsewhere", "--session-remote", "r.git", "--yes", "--take-over")
	if r.code != 0 || r.stdout != "deleted session work\n" ||
		!strings.Contains(r.stderr, "refs/heads/main stays unchanged") ||
		!strings.Contains(r.stderr, "artifactfs session undelete work --session-remote "+a.dir+"/r.git --deleted ") {
		t.Errorf("session delete: got %+v", r)
	}
	if q := last[control.SessionDeleteRequest](t, s); q.Of != "elsewhere" || q.Remote != filepath.Join(a.dir, "r.git") ||
		!q.TakeOver {
		t.Errorf("session delete sent the request %+v", q)
	}
	a.keep(t, "kept", a.dir+"/kept", 1)
	r = a.run("session", "delete", "kept", "--yes")
	if r.code != 0 || !strings.Contains(r.stderr, "artifactfs session undelete work --mount --deleted ") {
		t.Errorf("session delete of a session of this host: got %+v, want the command that mounts it again", r)
	}
	if got := a.ok("session", "undelete", "old"); got != "restored session old\n" {
		t.Errorf("undelete printed %q", got)
	}
	a.ok("session", "undelete", "old", "--deleted", "1796000000")
	if q := last[control.SessionUndeleteRequest](t, s); q.Deleted.Unix() != 1796000000 {
		t.Errorf("undelete --deleted sent the request %+v", q)
	}
	if got := a.ok("session", "list", "--deleted"); !strings.Contains(got, "old ") ||
		!strings.Contains(got, "60 min ago") && !strings.Contains(got, "1 h ago") {
		t.Errorf("list --deleted printed %q", got)
	}
	if r := a.run("session", "gc", "app", "--all"); r.code != control.ExitUsage {
		t.Errorf("session gc of a directory with --all: got %+v, want a usage error", r)
	}
}

// Undelete with --mount also mounts the session. If the directory cannot be used, nothing is restored; if the mount
// fails, the error has the command that mounts the session.
func TestSessionUndeleteMounts(t *testing.T) {
	a, s, f := newWork(t)
	s.set(func() {
		s.list = []control.SessionInfo{{SessionStatus: control.SessionStatus{Name: "old"}, Remote: "https://127.0.0.1/other",
			Dir: a.dir + "/there"}}
	})
	mounted := func() (r control.MountRequest) { // the last request for a mount
		f.set(func() {
			if n := len(f.requests); n > 0 {
				r = f.requests[n-1]
			}
			f.requests = nil
		})
		return r
	}
	undeleted := func() bool { // whether a session was restored
		s.mu.Lock()
		defer s.mu.Unlock()
		was := slices.ContainsFunc(s.asked, func(r any) bool { _, ok := r.(control.SessionUndeleteRequest); return ok })
		s.asked = nil
		return was
	}
	for args, dir := range map[string]string{"--mount": "there", "--mount here": "here"} {
		got := a.ok(append([]string{"session", "undelete", "old"}, strings.Fields(args)...)...)
		want := "restored session old\nresumed session : mounted https://127.0.0.1/other at " + a.dir + "/" + dir + " (main, "
		if r := mounted(); !strings.HasPrefix(got, want) || r.Dir != a.dir+"/"+dir || r.Session != "old" || !undeleted() {
			t.Errorf("undelete %s: got %q and the request %+v, want %q", args, got, r, want)
		}
	}
	var reply struct {
		Session string
		Refs    int64
		Mount   control.MountReply
	}
	out := a.ok("session", "undelete", "old", "--mount", "here", "--json")
	if err := json.Unmarshal([]byte(out), &reply); err != nil || reply.Session != "old" || reply.Refs != 3 ||
		reply.Mount.Dir != a.dir+"/here" {
		t.Errorf("undelete --mount --json: got %s (%v)", out, err)
	}
	mounted()
	undeleted()

	full := filepath.Join(a.dir, "it's")
	if err := os.MkdirAll(filepath.Join(full, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(a.dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{"it's": "mount it's: directory is not empty\nhint: choose an empty directory",
		"file": "mount file: path is not a directory"} {
		r := a.run("session", "undelete", "old", "--mount", dir)
		if r.code != control.ExitFailed || r.stdout != "" || !strings.Contains(r.stderr, want) || undeleted() {
			t.Errorf("undelete --mount %s: got %+v, want %q and nothing restored", dir, r, want)
		}
	}
	if r := a.run("session", "undelete", "old", "here"); r.code != control.ExitUsage || undeleted() {
		t.Errorf("undelete with a directory, but without --mount: got %+v, want a usage error", r)
	}

	taken := &control.Error{Code: control.ExitFailed, Kind: control.CodeConflict, Cause: "there is another",
		Hint: "delete it"}
	s.set(func() { s.undelete = taken })
	if r := a.run("session", "undelete", "old", "--mount", "here"); r.code != control.ExitFailed || mounted().Dir != "" ||
		!strings.Contains(r.stderr, "undelete session old: there is another\nhint: delete it\n") {
		t.Errorf("undelete --mount of a session whose name is taken: got %+v, want that error and no mount", r)
	}
	s.set(func() { s.undelete = nil })

	f.set(func() {
		f.mount = func(_ context.Context, r control.MountRequest, _ func(control.Progress)) (control.MountReply, error) {
			return control.MountReply{}, &control.Error{Code: control.ExitRemote, Kind: control.CodeUnreachable, Verb: "mount",
				Object: r.Dir, Cause: "no connection", Hint: "try again"}
		}
	})
	const restored = "mount session old: session is restored, but not mounted: no connection\nhint: try again; "
	for dir, command := range map[string]string{
		"": "artifactfs session resume old", "a b": "artifactfs session resume old '" + a.dir + "/a b'"} {
		r := a.run(append([]string{"session", "undelete", "old", "--mount"}, slices.DeleteFunc([]string{dir},
			func(d string) bool { return d == "" })...)...)
		if r.code != control.ExitRemote || r.stdout != "restored session old\n" ||
			!strings.Contains(r.stderr, restored+command+" mounts it\n") {
			t.Errorf("undelete --mount %q whose mount fails: got %+v, want %q", dir, r, restored+command)
		}
	}
	// The directory where the session was last may be in use meanwhile.
	s.set(func() { s.list[0].Dir = full })
	r := a.run("session", "undelete", "old", "--mount", "--json")
	if want := `"hint":"try again; artifactfs session resume old DIR mounts it"`; r.code != control.ExitRemote ||
		!strings.HasPrefix(r.stdout, `{"error":`) || !strings.Contains(r.stdout, want) {
		t.Errorf("undelete --mount whose directory is not empty: got %+v, want %s", r, want)
	}
}

func TestSessionApprovals(t *testing.T) {
	a, s, _ := newWork(t)
	r := a.run("session", "review", "request", "-C", "app", "--for", "merge", "--into", "stable", "--reviewers",
		"alice,bob", "--expires", "2h", "-m", "why")
	q := last[control.SessionApproveRequest](t, s)
	if q.Of != a.dir+"/app" || q.Op != "request" || q.Action != "merge" || q.Branch != "stable" ||
		q.Expires != 2*time.Hour || q.Text != "why" || q.Actor == "" ||
		!slices.Equal(q.Reviewers, []string{"alice", "bob"}) {
		t.Errorf("request of the command: got %+v", q)
	}
	want :=
		"request 01M80Q4ZJ3W6E5S8B8W2ZQ6T7K of session work: merge into main, files +1 ~0 -0, lines +2 -0\nstatus: open, needs 1 more approval\n"
	if !strings.HasPrefix(r.stdout, want) || !strings.Contains(r.stdout,
		"session review grant 'https://h/r.git#session=work@01M80Q4ZJ3W6E5S8B8W2ZQ6T7K'\n") ||
		!strings.Contains(r.stderr, "does not enforce them") {
		t.Errorf("review request: got %+v", r)
	}
	for to, want := range map[string][2]string{
		"https://h:8080/app.git":      {"https://h:8080/app.git", ""},
		"https://h:8080/app.git:main": {"https://h:8080/app.git", "main"},
		"git@h:app.git":               {"git@h:app.git", ""}, "git@h:app.git:a/b": {"git@h:app.git", "a/b"},
		"/srv/app.git:main": {"/srv/app.git", "main"}, "/srv/app.git": {"/srv/app.git", ""},
		"https://u:p@h/app.git": {"https://u:p@h/app.git", ""}, "ssh://h:22/app.git:main": {"ssh://h:22/app.git", "main"},
		":main": {"", "main"}, "origin:main": {"", "main"},
	} {
		if r := a.run("session", "review", "request", "-C", "app", "--for", "promote", "--to", to); r.code != 0 {
			t.Errorf("--to %s: got %+v", to, r)
		}
		if q := last[control.SessionApproveRequest](t, s); q.To != want[0] || q.Branch != want[1] {
			t.Errorf("--to %s: got repository %q and branch %q, want %q", to, q.To, q.Branch, want)
		}
	}
	for _, args := range [][]string{{}, {"--for", "merge", "--to", "/r"}, {"--for", "delete", "--into", "main"},
		{"--for", "merge", "--expires", "0s"}, {"--for", "x"}} {
		if r := a.run(append([]string{"session", "review", "request", "-C", "app"},
			args...)...); r.code != control.ExitUsage {
			t.Errorf("review request %q: got %+v, want exit code %d", args, r, control.ExitUsage)
		}
	}
	r = a.run("session", "review", "grant", "01m80q", "-C", "app", "-m", "read")
	if !strings.HasPrefix(r.stdout, "granted request ") || !strings.Contains(r.stdout, "lines +2 -0\nstatus: open") ||
		!strings.Contains(r.stderr, "does not count this grant") {
		t.Errorf("grant: got %+v", r)
	}
	if q := last[control.SessionApproveRequest](t, s); q.Op != "grant" || q.Request != "01m80q" || q.Text != "read" ||
		q.Of != a.dir+"/app" {
		t.Errorf("request of the command: got %+v", q)
	}
	a.ok("session", "review", "deny", "https://h/r.git#session=work@01M80", "--to", "https://h/t.git")
	if q := last[control.SessionApproveRequest](t, s); q.Op != "deny" || q.Of != "work" ||
		q.SessionRemote != "https://h/r.git" || q.Request != "01M80" || q.To != "https://h/t.git" {
		t.Errorf("request of deny with a link: got %+v", q)
	}
	if r := a.run("session", "review", "withdraw", "https://h/r.git#session=work"); r.code != control.ExitUsage ||
		!strings.Contains(r.stderr, "REQUEST is missing") {
		t.Errorf("withdraw without a request: got %+v", r)
	}
	want =
		"REQUEST     ACTION  TARGET  STATUS   GRANTED BY  MISSING  EXPIRES\n01M80Q4ZJ4  merge   main    granted  bob         -        in "
	if got := a.ok("session", "review", "list", "app"); !strings.HasPrefix(got, want) || strings.Count(got, "\n") != 2 {
		t.Errorf("review list printed\n%s", got)
	}
	if got := a.ok("session", "review", "list", "https://h/r.git#session=work", "--all"); !strings.Contains(got,
		"01M80Q4ZJ3  merge   main    void") {
		t.Errorf("review list --all printed\n%s", got)
	}
	if r := a.run("session", "policy", "-C", "app"); r.code == 0 || r.stdout != "{\"version\":2}\n" ||
		!strings.Contains(r.stderr, "version 2 is not known") {
		t.Errorf("policy that is not valid: got %+v", r)
	}
	name := filepath.Join(a.dir, "policy.json")
	if err := os.WriteFile(name, []byte(`{"version":1,"branch":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := a.run("session", "policy", "-C", "app", "--set", name); r.code != control.ExitUsage ||
		!strings.Contains(r.stderr, `unknown field "branch"`) {
		t.Errorf("file that is not a valid policy: got %+v", r)
	}
}

func TestSessionPromote(t *testing.T) {
	a, s, _ := newWork(t)
	id := func(digit string) string { return strings.Repeat(digit, 40) }
	s.set(func() {
		s.promoted = control.SessionPromoteReply{Session: "work", Target: "https://127.0.0.1/app", Branch: "main",
			Method: control.PromoteSquash,
			Old:    id("a"), New: id("b"), Total: 2, Commits: []control.SummaryCommit{{ID: id("c"), Subject: "fix\x1b[31m"},
				{ID: id("d"), Subject: "first"}}}
	})
	want :=
		"promoted 2 commits to main of https://127.0.0.1/app as one commit (aaaaaaaaaaaa..bbbbbbbbbbbb)\n  cccccccccccc fix [31m\n  dddddddddddd first\n"
	if got := a.ok("session", "promote", "app@good", "--to", "https://127.0.0.1:8080/other.git:main", "--squash", "-m",
		"text"); got != want {
		t.Errorf("session promote printed\n%s", got)
	}
	q := last[control.SessionPromoteRequest](t, s)
	if q.ID != "good" || q.To != "https://127.0.0.1:8080/other.git" || q.Branch != "main" ||
		q.Method != control.PromoteSquash || q.Message != "text" || q.DryRun {
		t.Errorf("request of the command: got %+v", q)
	}
	s.set(func() { s.promoted.Method = control.PromoteNone })
	if got := a.ok("session", "promote", "-C", "app",
		"--dry-run"); got != "nothing to promote: main of https://127.0.0.1/app contains the commits already\n" {
		t.Errorf("session promote printed %q", got)
	}
	for _, test := range []struct{ flags, want string }{
		{"-m text", "--message needs --squash or --merge"}, {"--title x", "need --pull-request"},
		{"--ff --merge", "exclude each other"},
		{"--pull-request", "there is no token for the forge"}, {"--to :refs/heads/x", `invalid branch "refs/heads/x"`},
	} {
		r := a.run(append([]string{"session", "promote", "-C", "app"}, strings.Fields(test.flags)...)...)
		if r.code != control.ExitUsage || !strings.Contains(r.stderr, test.want) {
			t.Errorf("session promote %s: got %+v, want %q", test.flags, r, test.want)
		}
	}
	a.env = append(a.env, "ARTIFACTFS_FORGE_TOKEN=secret-token")
	s.set(func() { s.promoted.Target = "https://127.0.0.1/team/app" })
	r := a.run("session", "promote", "-C", "app", "--pull-request")
	if r.code != control.ExitUsage || !strings.Contains(r.stderr,
		"URL of the repository does not show the kind of forge") || strings.Contains(r.stderr, "secret-token") {
		t.Errorf("pull request on an unknown forge: got %+v", r)
	}
	s.set(func() {
		s.summary = control.SessionSummaryReply{Session: "work", Title: "fix", TotalFiles: 5, LinesAdded: 3, Uncommitted: 1,
			Files: []control.SummaryFile{{Path: "b`c", From: "a", Status: "R", Added: 3},
				{Path: "x", Status: "A", Added: -1, Removed: -1}}}
	})
	want =
		"# fix\n\n## 5 files, +3 -0\n\n- R `a` → `` b`c `` +3 -0\n- A `x` binary\n- ... and 3 more\n\n1 changed file not committed.\n\nSession work.\n"
	if got := a.ok("session", "summary", "-C", "app", "--since", "@~1"); got != want {
		t.Errorf("session summary printed\n%s", got)
	}
	if q := last[control.SessionSummaryRequest](t, s); q.Since != "@~1" {
		t.Errorf("request of the command: got %+v", q)
	}
}
