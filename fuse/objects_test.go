package fuse

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// fakeObjects contains the ids of objects. A process that lists objects finds those that begin with 0. All have the
// same contents.
type fakeObjects struct {
	ids      map[string]bool
	lists    bool
	contents bool  // whether processes get contents
	failure  error // error of Open
	// opened is called by Opened if it is not nil.
	opened func(ctx context.Context, tid uint32)
}

type fakeObject struct{ *bytes.Reader }

func (fakeObject) Release() {}

func (f *fakeObjects) Find(_ context.Context, _ uint32, name string) (Finding, uint64, error) {
	switch {
	case !f.ids[name]:
		return Absent, 0, nil
	case f.contents:
		return Contents, 1<<62 - 7, nil
	}
	return Existence, 0, nil
}

func (f *fakeObjects) Open(_ context.Context, number uint64) (Object, error) {
	if number != 1<<62-7 {
		return nil, errors.New("unexpected number")
	}
	return fakeObject{bytes.NewReader([]byte(pattern(10_000)))}, f.failure
}

func (f *fakeObjects) Opened(ctx context.Context, tid uint32) {
	if f.opened != nil {
		f.opened(ctx, tid)
	}
}

func (f *fakeObjects) Lists(uint32) bool { return f.lists }

func (f *fakeObjects) List(first byte) (names []string) {
	for id := range f.ids {
		if rest, ok := strings.CutPrefix(id, hexDigits(first)); ok && id[0] == '0' {
			names = append(names, rest)
		}
	}
	return names
}

func TestObjectsExistWithoutContents(t *testing.T) {
	const hidden, first, second = ".git:artifactfs", "0a3456789012345678901234567890123456789a", "ff3456789012345678901234567890123456789a"
	objects := &fakeObjects{ids: map[string]bool{first: true}, lists: true}
	dir := t.TempDir()
	m := mountTree(t, worktreetest.New(map[string]worktreetest.File{"file": {Data: "text"}}),
		filepath.Join(dir, "inodes"), filepath.Join(dir, "overlay"), Options{Objects: objects, Hidden: hidden})
	top := hidden + "/objects"
	at := func(id string) string { return filepath.Join(m.dir, top, id[:2], id[2:]) }
	names := func(dir string) string {
		entries, err := os.ReadDir(filepath.Join(m.dir, dir))
		if err != nil {
			t.Error(err)
		}
		var all []string
		for _, e := range entries {
			all = append(all, e.Name())
		}
		return strings.Join(all, " ")
	}
	if got := names(""); got != "file" {
		t.Errorf("names in the root: got %s", got)
	}
	if info, err := os.Lstat(at(first)); err != nil || info.Mode().Type() != os.ModeSymlink {
		t.Errorf("lstat of an object: got %v, %v", info, err)
	}
	for name, err := range map[string]error{
		"open of an object":           func() error { _, err := os.ReadFile(at(first)); return err }(),
		"lstat of another object":     func() error { _, err := os.Lstat(at(second)); return err }(),
		"lstat of a directory":        func() error { _, err := os.Lstat(filepath.Join(m.dir, top, "pack")); return err }(),
		"lstat of a wrong fan-out":    func() error { _, err := os.Lstat(filepath.Join(m.dir, top, "FF")); return err }(),
		"lstat of an object as a dir": func() error { _, err := os.Lstat(filepath.Join(m.dir, top, second)); return err }(),
	} {
		if !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if got := names(top + "/0a"); got != first[2:] {
		t.Errorf("listing of 0a: got %q", got)
	}
	// Neither the look-up nor the listing is cached.
	delete(objects.ids, first)
	objects.ids["0a0000000000000000000000000000000000000b"], objects.ids[second] = true, true
	if _, err := os.Lstat(at(first)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("lstat of an object that was removed: got %v", err)
	}
	if _, err := os.Lstat(at(second)); err != nil {
		t.Errorf("lstat of an object that was added: got %v", err)
	}
	if got := names(top + "/0a"); got != "0000000000000000000000000000000000000b" {
		t.Errorf("second listing of 0a: got %q", got)
	}
	// A process that lists no objects does not get the listing of one that does, also if this listing is read later.
	full, err := os.Open(filepath.Join(m.dir, top, "0a"))
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for range 2 {
		objects.lists = false
		if got := names(top + "/0a"); got != "" {
			t.Errorf("listing of a process that lists nothing: got %q", got)
		}
		objects.lists = true
		if got := names(top + "/0a"); got != "0000000000000000000000000000000000000b" {
			t.Errorf("listing of a process that lists objects: got %q", got)
		}
	}
	if got, err := full.Readdirnames(-1); err != nil || len(got) != 1 {
		t.Errorf("listing of a directory that was open: got %q, %v", got, err)
	}
	objects.contents = true
	if got, err := os.ReadFile(at(second)); err != nil || string(got) != pattern(10_000) {
		t.Errorf("read of an object with contents: got %d bytes, %v", len(got), err)
	}
	dropCaches(t)
	f, err := os.Open(at(second))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Size() != 10_000 || info.Mode() != 0o444 {
		t.Errorf("stat of an object with contents: got %v, %v", info, err)
	}
	objects.contents = false
	if info, err := os.Lstat(at(second)); err != nil || info.Mode().Type() != os.ModeSymlink {
		t.Errorf("lstat by a process that gets no contents: got %v, %v", info, err)
	}
	part := make([]byte, 100)
	if n, err := f.ReadAt(part, 9_950); n != 50 || string(part[:n]) != pattern(10_000)[9_950:] {
		t.Errorf("read of the open object: got %d bytes, %v", n, err)
	}
	objects.contents, objects.failure = true, errors.New("the remote is away")
	if _, err := os.ReadFile(at(second)); !errors.Is(err, syscall.EIO) {
		t.Errorf("read of an object that cannot be fetched: got %v, want EIO", err)
	}
	objects.failure = nil
	for name, c := range map[string]struct{ got, want error }{
		"write to an object":      {os.WriteFile(at(second), []byte("x"), 0), syscall.EROFS},
		"truncate an object":      {os.Truncate(at(second), 0), syscall.EROFS},
		"remove the directory":    {syscall.Rmdir(filepath.Join(m.dir, hidden)), syscall.EBUSY},
		"replace the directory":   {os.Rename(filepath.Join(m.dir, "file"), filepath.Join(m.dir, hidden)), syscall.EEXIST},
		"move the directory":      {os.Rename(filepath.Join(m.dir, hidden), filepath.Join(m.dir, "other")), syscall.EBUSY},
		"create the directory":    {os.Mkdir(filepath.Join(m.dir, hidden), 0o755), syscall.EEXIST},
		"remove the objects":      {syscall.Rmdir(filepath.Join(m.dir, top)), syscall.EROFS},
		"create an object":        {os.WriteFile(at("ffff"+second[4:]), nil, 0o644), syscall.EROFS},
		"remove an object":        {os.Remove(at(second)), syscall.EROFS},
		"move into the directory": {os.Rename(filepath.Join(m.dir, "file"), at("ffff"+second[4:])), syscall.EROFS},
		"link into the directory": {os.Link(filepath.Join(m.dir, "file"), at("ffff"+second[4:])), syscall.EROFS},
		"change a mode":           {os.Chmod(filepath.Join(m.dir, top, "ff"), 0o777), syscall.EROFS},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: got %v, want %v", name, c.got, c.want)
		}
	}
}

// TestOpenOfObjectWaitsAlone checks that a process that waits for an object, for example because the remote does not
// answer, delays no process that opens the same object or another one with the same first byte.
func TestOpenOfObjectWaitsAlone(t *testing.T) {
	const hidden = ".git:artifactfs"
	const first, second = "0a3456789012345678901234567890123456789a", "0a3456789012345678901234567890123456789b"
	waiting := make(chan bool)
	var calls atomic.Int32
	objects := &fakeObjects{ids: map[string]bool{first: true, second: true}}
	objects.opened = func(ctx context.Context, _ uint32) {
		if calls.Add(1) == 1 {
			close(waiting)
			<-ctx.Done()
		}
	}
	dir := t.TempDir()
	m := mountTree(t, worktreetest.New(nil), filepath.Join(dir, "inodes"), filepath.Join(dir, "overlay"),
		Options{Objects: objects, Hidden: hidden})
	at := func(id string) string { return filepath.Join(m.dir, hidden, "objects", id[:2], id[2:]) }
	stalled := exec.Command("cat", at(first))
	if err := stalled.Start(); err != nil {
		t.Fatal(err)
	}
	<-waiting
	for _, id := range []string{first, second} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		other := exec.CommandContext(ctx, "cat", at(id))
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		opened := make(chan error, 1)
		go func() { opened <- other.Wait() }()
		select {
		case <-opened:
			if ctx.Err() != nil {
				t.Errorf("open of object %s while another process waits: it was killed", id)
			}
		case <-ctx.Done():
			t.Errorf("open of object %s while another process waits: it waits too, and cannot be killed", id)
		}
		cancel()
	}
	stalled.Process.Kill()
	stalled.Wait()
}
