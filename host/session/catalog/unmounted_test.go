package catalog

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/host/statedir/statedirtest"
)

// TestListWaitsForLooking checks that Unmounted also returns a session that other processes are reading at the same
// time.
func TestListWaitsForLooking(t *testing.T) {
	h := statedirtest.New(t)
	statedirtest.Add(t, h, "work", 1, true)
	lists := map[string]func() int{
		"Kept": func() int {
			all, err := Unmounted(h.State)
			if err != nil {
				t.Error(err)
			}
			return len(all)
		},
		"sessions": func() int {
			all, err := ListUnmounted(t.Context(), h, nil)
			if err != nil {
				t.Error(err)
			}
			return len(all)
		},
	}
	for name, list := range lists {
		before := list()
		looking, err := h.LockExisting("work")
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(3*statedir.LookPause, looking.Unlock)
		if got := list(); got != before {
			t.Errorf("%s while other processes list: got %d sessions, want %d", name, got, before)
		}
		m, err := h.Lock(t.Context(), "work", "/srv/work")
		if err != nil {
			t.Fatal(err)
		}
		took := statedir.ListTime
		for try := 0; try < 5 && took >= statedir.ListTime; try++ { // a busy machine may delay one of them
			start := time.Now()
			if got := list(); got != 0 {
				t.Errorf("%s while it is mounted: got %d sessions, want 0", name, got)
			}
			took = time.Since(start)
		}
		if took >= statedir.ListTime {
			t.Errorf("%s while it is mounted: took %v, want no wait", name, took)
		}
		m.Release()
	}
}

// TestUnmountedSessionsShowTheirBranch checks that the branch of a fork is listed, also if the daemon was killed before
// the fork had a git directory.
func TestUnmountedSessionsShowTheirBranch(t *testing.T) {
	h := statedirtest.New(t)
	statedirtest.Add(t, h, "work", 1, false)
	branch := func() string {
		all, err := Unmounted(h.State)
		if err != nil || len(all) != 1 {
			t.Fatalf("unmounted sessions: got %+v, %v", all, err)
		}
		return all[0].Head
	}
	if got := branch(); got != "fix" {
		t.Errorf("branch of a session without a git directory: got %q, want that of its record", got)
	}
	git := filepath.Join(h.Dir(), "work", "git")
	err := os.Mkdir(git, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(git, "HEAD"), []byte("ref: refs/heads/later\n"), 0o600)
	}
	if got := branch(); err != nil || got != "later" {
		t.Errorf("branch of a session with a git directory: got %q, want that of HEAD, %v", got, err)
	}
}

func encodeRecord(t *testing.T, r statedir.Record) []byte {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestDeadMountIsWaitedFor checks that the end of a killed mount is awaited, because the kernel may release its lock
// after the process has disappeared.
func TestDeadMountIsWaitedFor(t *testing.T) {
	h := statedirtest.New(t)
	statedirtest.Add(t, h, "work", 1, true)
	process := exec.Command("true")
	if err := process.Run(); err != nil {
		t.Fatal(err)
	}
	die := func() {
		m, err := h.LockExisting("work")
		if err != nil {
			t.Fatal(err)
		}
		m.Sign(fmt.Sprintf("%d /srv/work\n", process.Process.Pid))
		time.AfterFunc(3*statedir.LookPause, m.Unlock)
	}
	die()
	if kept, err := Unmounted(h.State); err != nil || len(kept) != 1 {
		t.Errorf("sessions after the end of the process that had mounted one: got %+v, %v, want session work", kept, err)
	}
	die()
	m, err := h.Lock(t.Context(), "work", "/srv/again")
	if err != nil {
		t.Fatalf("mount after the end of the process that had the session mounted: %v", err)
	}
	m.Release()
}

func TestLeftoversGoAndWorkStays(t *testing.T) {
	h := statedirtest.New(t)
	statedirtest.Add(t, h, "kept", 2, true)
	statedirtest.Add(t, h, "killed", 3, false)
	statedirtest.Add(t, h, "untouched", 0, false)
	statedirtest.Add(t, h, "odd", 1, true)
	statedirtest.Add(t, h, "newer", 1, true)
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(h.Dir(), name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write("odd/session.json", "{")
	write("newer/session.json", `{"version":99}`)
	write("lost/overlay/contents/000000/000001", "work without a record")
	write("_1a2b3c4d/inodes", "of a read-only mount")
	write("_1a2b3c4d/overlay/log", "that has .git and nothing else")
	write("early/lock", "1 /srv/early")
	write("commits/session.json",
		string(encodeRecord(t,
			func() statedir.Record { r := statedirtest.Record(); r.Session, r.Changed = "commits", 0; return r }())))
	write("commits/git/objects/ab/cd", "")
	write(statedir.RemovedPrefix+"x/lock", "")
	mounted, err := h.Lock(t.Context(), "mounted", "/srv/mounted")
	if err != nil {
		t.Fatal(err)
	}
	defer mounted.Unlock()
	if err := h.RemoveLeftovers(); err != nil {
		t.Fatal(err)
	}
	if names := statedirtest.Names(t, h); names != "commits kept killed lost mounted newer odd" {
		t.Errorf("directories below mounts/: got %q", names)
	}
	if r, err := statedir.ReadRecord(filepath.Join(h.Dir(), "killed")); err != nil || !r.Counted || r.Changed != 3 {
		t.Errorf("changes of a session whose mount was killed: got %+v, %v", r, err)
	}
	kept, err := Unmounted(h.State)
	if err != nil {
		t.Fatal(err)
	}
	changed := map[string]int64{}
	for _, k := range kept {
		changed[k.Session.Name] = k.Overlay.Changed
		if k.State != control.StateUnmounted || k.Overlay.Changed < 0 && k.Error == "" {
			t.Errorf("unmounted session: got %+v, want state unmounted, and an error if the changes cannot be counted", k)
		}
	}
	for name, want := range map[string]int64{"kept": 2, "killed": 3, "commits": 0, "odd": -1, "newer": -1, "lost": -1} {
		if got, ok := changed[name]; !ok || got != want {
			t.Errorf("session %s: got %d changes, want %d", name, got, want)
		}
	}
	if len(kept) != 6 {
		t.Errorf("got %d unmounted sessions", len(kept))
	}
}

// TestIncompleteRepository checks that it is no error to read a session whose repository is being created, or was being
// created when the process was killed. Such a session has no checkpoint yet.
func TestIncompleteRepository(t *testing.T) {
	h := statedirtest.New(t)
	statedirtest.Add(t, h, "work", 1, true)
	home, err := h.LockExisting("work")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(home.Dir, statedir.SessionRepoName)); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(home.Dir, statedir.SessionRepoName, "objects", "pack"), 0o755); err != nil {
		t.Fatal(err)
	}
	o, err := openHome(home, false)
	if err != nil {
		home.Unlock()
		t.Fatal(err)
	}
	defer o.Close()
	if o.Repo != nil {
		t.Error("a repository without HEAD was opened")
	}
}
