package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// stateOn mounts a tmpfs with these options at the world's state directory.
func (w *world) stateOn(options string) {
	w.Helper()
	if err := errors.Join(os.Mkdir(w.state, 0o700), unix.Mount("tmpfs", w.state, "tmpfs", 0, options)); err != nil {
		w.Fatal(err)
	}
}

// newWorldOnSmallDisk returns a world whose state directory is on a small tmpfs, which is unmounted when the world
// ends.
func newWorldOnSmallDisk(t testing.TB, size int) *world {
	t.Helper()
	return newWorldOnDisk(t, fmt.Sprintf("size=%d,mode=700", size))
}

// newWorldOnDisk returns a world whose state directory is on a tmpfs with these options, which is unmounted when the
// world ends.
func newWorldOnDisk(t testing.TB, options string) *world {
	t.Helper()
	w := newWorld(t)
	w.stateOn(options)
	t.Cleanup(func() { // runs before the world's own end
		w.afs("unmount", "--all")
		w.until("the daemon has ended", func() bool { return len(daemonsBelow(w.root)) == 0 })
		w.until("the small disk is free", func() bool { return unix.Unmount(w.state, 0) == nil })
	})
	return w
}

// fill writes files until the small disk is full, and returns a function that removes them.
func (w *world) fill() (free func()) {
	w.Helper()
	path := filepath.Join(w.state, "filler")
	f := must[*os.File](w)(os.Create(path))
	defer f.Close()
	for chunk := make([]byte, 1<<20); len(chunk) > 0; {
		if _, err := f.Write(chunk); errors.Is(err, unix.ENOSPC) {
			chunk = chunk[:len(chunk)/2]
		} else if err != nil {
			w.Fatal(err)
		}
	}
	return func() {
		if err := os.Remove(path); err != nil {
			w.Error(err)
		}
	}
}

// writeFile is os.WriteFile with an fsync, which must return the error of a full disk if no write has.
func writeFile(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

// appendTo appends to a file, without an fsync: write(2) itself must return the error of a full disk.
func appendTo(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if closeErr := f.Close(); err == nil && closeErr != nil {
		err = fmt.Errorf("close reported an error that write did not: %v", closeErr)
	}
	return err
}

func TestDiskFull(t *testing.T) {
	const disk, large = 128 << 20, 8 << 20
	w := newWorldOnSmallDisk(t, disk)
	noise := make([]byte, large)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	w.commit(w.repo("r.git", object.SHA1), map[string]gittest.File{"large": {Data: noise},
		"small": {Data: []byte("small\n")}, "dir/f": {Data: []byte("f\n")}})
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	m := w.bare(url)
	// All contents are fetched: errors from now on are caused by the full disk.
	for name, want := range map[string][]byte{"large": noise, "small": []byte("small\n"), "dir/f": []byte("f\n")} {
		if got, err := os.ReadFile(m.path(name)); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("read %s before the disk is full: got %d bytes, %v", name, len(got), err)
		}
	}
	if err := writeFile(m.path("before"), []byte("before\n")); err != nil {
		t.Fatal(err)
	}

	t.Run("write", func(t *testing.T) {
		defer w.fill()()
		wants(t, "writing a large file", writeFile(m.path("big"), noise), unix.ENOSPC)
		wants(t, "appending much", appendTo(m.path("before"), noise), unix.ENOSPC)
		if got, err := os.ReadFile(m.path("small")); err != nil || string(got) != "small\n" {
			t.Errorf("read the directory on the full disk: got %q, %v", got, err)
		}
	})
	t.Run("room again", func(t *testing.T) {
		if err := os.Remove(m.path("big")); err != nil && !os.IsNotExist(err) {
			t.Error(err)
		}
		check(t, os.Truncate(m.path("before"), int64(len("before\n"))))
		check(t, writeFile(m.path("big"), noise))
		for name, want := range map[string][]byte{"big": noise, "before": []byte("before\n")} {
			if got, err := os.ReadFile(m.path(name)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("read %s: %v%s", name, err, where(got, want))
			}
		}
		check(t, os.Remove(m.path("big")))
	})
	w.until("deleted files have freed their blocks", func() bool { // otherwise the next write would get these blocks
		contents := filepath.Join(w.state, "mounts", m.ID, "overlay", "contents")
		room := int64(0)
		check(t, filepath.WalkDir(contents, func(_ string, d fs.DirEntry, err error) error {
			if info, infoErr := d.Info(); err == nil && infoErr == nil && !d.IsDir() {
				room += info.Size()
			}
			return err
		}))
		return room < large
	})
	t.Run("copy-up", func(t *testing.T) {
		free := w.fill()
		f := must[*os.File](t)(os.OpenFile(m.path("large"), os.O_RDWR, 0))
		_, err := f.WriteAt([]byte("changed"), large/2)
		wants(t, "changing an untouched file", errors.Join(err, f.Sync()), unix.ENOSPC)
		f.Close() // close may return the error, too
		w.dropCaches()
		if got, err := os.ReadFile(m.path("large")); err != nil || !bytes.Equal(got, noise) {
			t.Errorf("read after the failed write: %v%s", err, where(got, noise))
		}
		free()
		f = must[*os.File](t)(os.OpenFile(m.path("large"), os.O_RDWR, 0))
		defer f.Close()
		copy(noise[large/2:], "changed")
		if _, err := f.WriteAt([]byte("changed"), large/2); err != nil {
			t.Error(err)
		}
		check(t, f.Sync())
		if got, err := os.ReadFile(m.path("large")); err != nil || !bytes.Equal(got, noise) {
			t.Errorf("read after space was freed: %v%s", err, where(got, noise))
		}
	})
	names := map[string]bool{}
	t.Run("storm", func(t *testing.T) {
		check(t, os.Mkdir(m.path("storm"), 0o755))
		free := w.fill()
		failed := false
		for i := 0; !failed; i++ {
			name := fmt.Sprintf("storm/%06d-%s", i, strings.Repeat("x", 240)) // long names fill the log soon
			err := os.WriteFile(m.path(name), nil, 0o644)
			if err == nil {
				names[name] = true
				if i%3 == 0 {
					if err = os.Rename(m.path(name), m.path(name+"-m")); err == nil {
						delete(names, name)
						names[name+"-m"] = true
					}
				}
			}
			if err != nil {
				wants(t, name, err, unix.ENOSPC)
				failed = true
			} else if i > 1_000_000 {
				t.Fatal("all files could be created on the small disk")
			}
		}
		t.Logf("%d names until the disk was full", len(names))
		w.sameNames(m.path("storm"), names)
		free()
		for i := range 100 {
			name := fmt.Sprintf("storm/later-%d", i)
			check(t, os.WriteFile(m.path(name), []byte("later\n"), 0o644))
			names[name] = true
		}
	})
	closed := func(how string) {
		w.sameNames(m.path("storm"), names)
		for name, want := range map[string][]byte{"large": noise, "before": []byte("before\n"), "small": []byte("small\n"),
			"storm/later-5": []byte("later\n")} {
			if got, err := os.ReadFile(m.path(name)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: read %s: %v%s", how, name, err, where(got, want))
			}
		}
	}
	closed("before unmounting")
	w.unmount(m)
	w.ok("mount", url, m.Dir, "--history", "none", "--prefetch", "none")
	closed("mounted again")
	t.Run("unmounted while full", func(t *testing.T) {
		free := w.fill()
		r := w.afs("unmount", m.Dir)
		if r.code != 0 && !strings.Contains(r.stderr, "space") {
			t.Error(r)
		}
		free()
		if r.code == 0 {
			w.ok("mount", url, m.Dir, "--history", "none", "--prefetch", "none")
		}
	})
	closed("after unmounting on a full disk")
	m.await("the mount is no longer degraded after space was freed",
		func(st control.MountStatus) bool { return st.State == control.StateMounted })
}

// sameNames compares a directory's entries.
func (w *world) sameNames(dir string, want map[string]bool) {
	w.Helper()
	got := map[string]bool{}
	for _, e := range must[[]os.DirEntry](w)(os.ReadDir(dir)) {
		got[filepath.Base(dir)+"/"+e.Name()] = true
	}
	for name := range want {
		if !got[name] {
			w.Errorf("%s is missing", name)
		}
	}
	for name := range got {
		if !want[name] {
			w.Errorf("%s exists, but should not", name)
		}
	}
}

// contents returns the contents of all files below a directory by their paths.
func (w *world) contents(dir string) map[string]string {
	w.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		all[path] = string(data)
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	return all
}

// damaged is an unmounted session with some changes, whose files a test damages.
type damaged struct {
	*world
	m       mounted
	url     string
	home    string // of the session
	overlay string
}

func newDamaged(t *testing.T) *damaged {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), map[string]gittest.File{"base": {Data: []byte("base\n")},
		"changed": {Data: []byte("before\n")}})
	d := &damaged{world: w, url: w.serve(gittest.ServerOptions{}).URL("r.git")}
	d.m = w.bare(d.url)
	for i := range 50 {
		check(t, os.WriteFile(d.m.path(fmt.Sprintf("new%02d", i)), fmt.Appendf(nil, "new %d\n", i), 0o644))
	}
	check(t, os.WriteFile(d.m.path("changed"), []byte("after\n"), 0o644))
	d.home = filepath.Join(w.state, "mounts", d.m.ID)
	d.overlay = filepath.Join(d.home, "overlay")
	w.unmount(d.m)
	if !exists(filepath.Join(d.overlay, "log")) {
		t.Fatalf("no log file in %s", d.overlay)
	}
	return d
}

func (d *damaged) mountAgain(args ...string) result {
	d.Helper()
	return d.afs(append([]string{"mount", d.url, d.m.Dir, "--history", "none", "--prefetch", "none"}, args...)...)
}

// refusedUntouched checks that mount fails with an error that contains the names, and that all files of the overlay are
// unchanged.
func (d *damaged) refusedUntouched(names ...string) {
	d.Helper()
	before := d.contents(d.home)
	r := d.mountAgain()
	if r.code == 0 {
		d.Fatalf("mount of a damaged session succeeded: %s", r)
	}
	for _, n := range names {
		if !strings.Contains(r.stderr, n) {
			d.Errorf("mount does not name %q: %s", n, r)
		}
	}
	if lines := strings.Split(strings.TrimSpace(r.stderr), "\n"); len(lines) > 2 ||
		!strings.HasPrefix(lines[0], "artifactfs: ") {
		d.Errorf("error is not one line with a hint: %s", r)
	}
	after := d.contents(d.home)
	for path, data := range before {
		if got, ok := after[path]; !ok || got != data && strings.HasPrefix(path, d.overlay) {
			d.Errorf("%s was changed or removed", path)
		}
	}
	if at := mountsBelow(d.root); len(at) > 0 {
		d.Errorf("still mounted: %s", at)
	}
}

func TestDamagedLog(t *testing.T) {
	d := newDamaged(t)
	log := filepath.Join(d.overlay, "log")
	data := must[[]byte](t)(os.ReadFile(log))
	used := len(bytes.TrimRight(data, "\x00"))
	at := bytes.Index(data, []byte("new25")) // in a record before many others
	if at < 0 {
		t.Fatal("the log does not contain the name of a new file")
	}
	data[at] ^= 0x55
	check(t, os.WriteFile(log, data, 0o600))
	d.refusedUntouched(log, "hint: ")
	// A read-only mount of the damaged session works.
	if r := d.mountAgain("--read-only"); r.code != 0 {
		t.Error(r)
	} else {
		if got, err := os.ReadFile(d.m.path("base")); err != nil || string(got) != "base\n" {
			t.Errorf("read base: got %q (%v), want \"base\\n\"", got, err)
		}
		wants(t, "write", os.WriteFile(d.m.path("x"), nil, 0o644), unix.EROFS)
		d.ok("unmount", d.m.Dir)
	}
	if r := d.afs("doctor"); r.code != control.ExitFailed || !strings.Contains(r.stdout+r.stderr, log) {
		t.Errorf("doctor of the damaged session: %s", r)
	}
	r := d.afs("doctor", "--fix")
	t.Logf("%s", r)
	found := false
	for path, kept := range d.contents(d.home) {
		found = found || strings.Contains(path, "lost+found") && bytes.HasPrefix([]byte(kept), data[:used])
	}
	if !found {
		t.Error("the damaged log is not in lost+found")
	}
	if r := d.mountAgain(); r.code != 0 {
		t.Fatal(r)
	}
	if got, err := os.ReadFile(d.m.path("base")); err != nil || string(got) != "base\n" {
		t.Errorf("read base: got %q (%v), want \"base\\n\"", got, err)
	}
	check(t, os.WriteFile(d.m.path("goes-on"), nil, 0o644))
}

func TestMissingContent(t *testing.T) {
	d := newDamaged(t)
	var gone string
	for path, data := range d.contents(d.overlay) {
		if data == "new 7\n" {
			gone = path
		}
	}
	if gone == "" {
		t.Fatal("no contents file of the overlay has the contents of the file")
	}
	check(t, os.Remove(gone))
	if r := d.afs("doctor"); r.code != control.ExitFailed || !strings.Contains(r.stdout+r.stderr, "new07") &&
		!strings.Contains(r.stdout+r.stderr, filepath.Base(gone)) {
		t.Errorf("doctor of the damaged session: %s", r)
	}
	if r := d.mountAgain(); r.code != 0 {
		t.Fatal(r)
	}
	_, err := os.ReadFile(d.m.path("new07"))
	wants(t, "reading what is lost", err, unix.EIO)
	for name, want := range map[string]string{"new08": "new 8\n", "changed": "after\n", "base": "base\n"} {
		if got, err := os.ReadFile(d.m.path(name)); err != nil || string(got) != want {
			t.Errorf("read %s: got %q (%v), want %q", name, got, err, want)
		}
	}
	if err := os.WriteFile(d.m.path("new07"), []byte("anew\n"), 0o644); err != nil {
		t.Errorf("write the damaged file again: %v", err)
	} else if got, err := os.ReadFile(d.m.path("new07")); err != nil || string(got) != "anew\n" {
		t.Errorf("read the file that was written again: got %q, %v", got, err)
	}
}

func TestNewerVersion(t *testing.T) {
	t.Run("log", func(t *testing.T) {
		d := newDamaged(t)
		log := filepath.Join(d.overlay, "log")
		data := must[[]byte](t)(os.ReadFile(log))
		data[8] = 200 // the version follows the magic number
		check(t, os.WriteFile(log, data, 0o600))
		d.refusedUntouched("200")
	})
	t.Run("session", func(t *testing.T) {
		d := newDamaged(t)
		file := filepath.Join(d.home, "session.json")
		var fields map[string]any
		check(t, json.Unmarshal(must[[]byte](t)(os.ReadFile(file)), &fields))
		fields["version"] = 4711
		check(t, os.WriteFile(file, must[[]byte](t)(json.Marshal(fields)), 0o600))
		d.refusedUntouched("4711")
		if r := d.afs("unmount", "--discard", "--yes", d.m.Dir); r.code == 0 && !exists(d.overlay) {
			t.Errorf("unmount --discard removed the overlay of a newer version: %s", r)
		}
	})
}

func TestReadOnlyState(t *testing.T) {
	d := newDamaged(t)
	d.ok("unmount", "--all")
	d.until("the daemon has ended", func() bool { return len(daemonsBelow(d.root)) == 0 })
	check(t, unix.Mount(d.state, d.state, "", unix.MS_BIND, ""))
	check(t, unix.Mount("", d.state, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	defer unix.Unmount(d.state, 0)
	r := d.mountAgain()
	if r.code != control.ExitFailed || !strings.Contains(r.stderr, "read-only") {
		t.Error(r)
	}
	d.oneLineAndHint(r)
}
