package fuse

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/worktree"
)

// asEventProcess runs f on a thread whose requests are those of the event process of the list.
func (m *mounted) asEventProcess(list []*NameEvent, f func()) {
	m.Helper()
	err := WithoutDevice(func() error {
		tid := unix.Gettid()
		if err := WithAllFiles(func() error { m.BeginEvents(tid, list); return nil }); err != nil {
			return err
		}
		f()
		return WithAllFiles(func() error { m.EndEvents(); return nil })
	})
	if err != nil {
		m.Fatal(err)
	}
}

// everything returns names, nodes, times and contents of all files.
func (m *mounted) everything() string {
	m.Helper()
	return m.run("sh", "-c",
		"find . -name '.git*' -prune -o -printf '%p %y %i %m %n %s %T@ %C@\n' | sort; cat file other dir/sub/inner")
}

// A request of an event process changes nothing, whatever the state of the name: the change that it stands for may be
// out of date.
func TestEventProcessChangesNothing(t *testing.T) {
	m := edit(t, mutableFiles)
	at := func(name string, kind EventKind) *NameEvent {
		return &NameEvent{Place: worktree.Place{Dir: worktree.Root, Name: name}, Kind: kind}
	}
	before := m.everything()
	list := []*NameEvent{
		at("file", Removed), at("dir", RemovedDir), at("gone", Removed), at("gonedir", RemovedDir), at("link", Created),
		at("new", Created),
		at("newdir", CreatedDir), at("other", Replaced),
	}
	calls := []struct {
		what string
		call func() error
		want error
	}{
		{"probe", func() error { _, err := os.Lstat(m.path(EventProbe)); return err }, nil},
		{"remove a name that exists again", func() error { return unix.Unlink(m.path("file")) }, unix.EBUSY},
		{"remove a directory that exists again", func() error { return unix.Rmdir(m.path("dir")) }, unix.EBUSY},
		{"remove a name", func() error { return unix.Unlink(m.path("gone")) }, nil},
		{"remove a directory", func() error { return unix.Rmdir(m.path("gonedir")) }, nil},
		{"create a name that programs know", func() error { return unix.Mknod(m.path("link"), unix.S_IFREG|0o600, 0) },
			unix.EEXIST},
		{"create a name that is absent again", func() error { return unix.Mknod(m.path("new"), unix.S_IFREG|0o600, 0) },
			unix.EEXIST},
		{"create a directory that is absent again", func() error { return unix.Mkdir(m.path("newdir"), 0o700) }, unix.EEXIST},
		{"set times", func() error {
			return unix.UtimesNanoAt(unix.AT_FDCWD, m.path("other"), []unix.Timespec{{Sec: 1}, {Sec: 1}}, 0)
		}, nil},
		{"set the times of a directory", func() error {
			return unix.UtimesNanoAt(unix.AT_FDCWD, m.path("dir"), []unix.Timespec{{Sec: 1}, {Sec: 1}}, 0)
		}, nil},
		{"remove another name", func() error { return unix.Unlink(m.path("dir/sub/inner")) }, unix.EROFS},
		{"create another name", func() error { return unix.Mkdir(m.path("dir/other"), 0o700) }, unix.EROFS},
	}
	got := make([]error, len(calls))
	var seen error
	m.asEventProcess(list, func() {
		for i, c := range calls {
			got[i] = c.call()
		}
		var st unix.Stat_t
		if err := unix.Lstat(m.path("gone"), &st); err != nil {
			got[3] = err
		}
		WithAllFiles(func() error { _, seen = os.Lstat(m.path("gone")); return nil })
	})
	for i, c := range calls {
		if !errors.Is(got[i], c.want) {
			t.Errorf("%s: got %v, want %v", c.what, got[i], c.want)
		}
	}
	if !errors.Is(seen, fs.ErrNotExist) {
		t.Errorf("another process looks a removed name up: got %v, want %v", seen, fs.ErrNotExist)
	}
	for _, name := range []string{EventProbe, "gone", "gonedir", "new", "newdir"} {
		if _, err := os.Lstat(m.path(name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s afterwards: got %v, want %v", name, err, fs.ErrNotExist)
		}
	}
	if after := m.everything(); after != before {
		t.Errorf("files afterwards:\n%swant\n%s", after, before)
	}
}

// The event process of a predecessor is ended, and its changes fail until it has ended.
func TestEventProcessOfPredecessor(t *testing.T) {
	sleeper, err := os.StartProcess("/bin/sleep", []string{"sleep", "60"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	stat, err := proc.Of(sleeper.Pid).Stat()
	if err != nil {
		t.Fatal(err)
	}
	var f eventFS
	f.begin(EventProcess{PID: sleeper.Pid, Start: stat.Start + 1}) // the id was used again
	if f.orphan.Load() != 0 {
		t.Error("another process with the same id counts as the event process")
	}
	f.begin(EventProcess{PID: sleeper.Pid, Start: stat.Start})
	if state, err := sleeper.Wait(); err != nil || state.Success() {
		t.Errorf("event process: got %v, %v, want a kill", state, err)
	}
	await.Until(t, "the id is free", func() bool { return f.orphan.Load() == 0 })
}
