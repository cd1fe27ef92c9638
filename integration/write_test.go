package integration

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// again ends a mount, by unmounting or by SIGKILL, and mounts the same directory again.
func (m mounted) again(kill bool) {
	m.w.Helper()
	if kill {
		m.w.killDaemon()
	} else {
		m.w.unmount(m)
	}
	m.w.ok("mount", m.Remote, m.Dir, "--history", "none", "--prefetch", "none")
}

// flushed makes the kernel write back its dirty pages, which the mount of a killed daemon would lose.
func (m mounted) flushed() {
	m.w.Helper()
	fd := must[int](m.w)(open(m.Dir, unix.O_RDONLY|unix.O_DIRECTORY, 0))
	defer unix.Close(fd)
	if err := unix.Syncfs(fd); err != nil {
		m.w.Fatal(err)
	}
}

// face has the attributes by which programs recognize an unchanged file.
type face struct {
	ino   uint64
	mode  uint32
	size  int64
	mtime unix.Timespec
}

// faces returns the faces of all paths of a tree. Those of directories have no size.
func (w *world) faces(dir string) map[string]face {
	w.Helper()
	all := map[string]face{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		f := face{st.Ino, st.Mode, st.Size, st.Mtim}
		if d.IsDir() {
			f.size = 0
		}
		rel, _ := filepath.Rel(dir, path)
		all[rel] = f
		return nil
	})
	if err != nil {
		w.Fatal(err)
	}
	return all
}

func (w *world) sameFaces(what string, got, want map[string]face) {
	w.Helper()
	shown := 0
	for _, path := range slices.Sorted(maps.Keys(want)) {
		if g, ok := got[path]; (!ok || g != want[path]) && shown < differencesShown {
			w.Errorf("%s: attributes of %q: got %+v, want %+v", what, path, g, want[path])
			shown++
		}
	}
	for path := range got {
		if _, ok := want[path]; !ok {
			w.Errorf("%s: path %q is new", what, path)
		}
	}
}

func TestWorkStays(t *testing.T) {
	w := newWorld(t)
	files := sample("work stays")
	w.commit(w.repo("r.git", object.SHA1), files)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("r.git"))
	check(t, os.WriteFile(m.path("known/a"), []byte("changed\n"), 0o644))
	check(t, os.Rename(m.path("d1"), m.path("moved")))
	check(t, os.RemoveAll(m.path("d2")))
	check(t, os.MkdirAll(m.path("new/deep"), 0o755))
	check(t, os.WriteFile(m.path("new/deep/file"), bytes.Repeat([]byte("new"), 50_000), 0o600))
	check(t, os.Symlink("deep/file", m.path("new/link")))
	check(t, os.Link(m.path("known/b"), m.path("new/hard")))
	check(t, os.Chmod(m.path("big/0"), 0o755))
	check(t, os.Chtimes(m.path("big/1"), time.Unix(5, 6), time.Unix(7, 8)))
	look := func(how string) {
		t.Helper()
		for name, want := range map[string][]byte{
			"known/a": []byte("changed\n"), "moved/sub/f3": files["d1/sub/f3"].Data,
			"new/deep/file": bytes.Repeat([]byte("new"), 50_000),
			"new/link":      bytes.Repeat([]byte("new"), 50_000), "new/hard": files["known/b"].Data,
			"big/0":     files["big/0"].Data,
			"d3/sub/f1": files["d3/sub/f1"].Data,
		} {
			if got, err := os.ReadFile(m.path(name)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: read %s: %v%s", how, name, err, where(got, want))
			}
		}
		for _, name := range []string{"d1", "d2"} {
			if _, err := os.Lstat(m.path(name)); !os.IsNotExist(err) {
				t.Errorf("%s: lstat %s: got %v, want no such file", how, name, err)
			}
		}
	}
	look("at once")
	before := w.faces(m.Dir)
	m.again(false)
	look("after unmount and mount")
	w.sameFaces("after unmount and mount", w.faces(m.Dir), before)
	m.flushed()
	m.again(true)
	look("after a kill")
	w.sameFaces("after a kill", w.faces(m.Dir), before)
	if st := m.status(); st.ReadOnly || st.Overlay.Changed == 0 || st.Overlay.Bytes == 0 || st.Session.Name == "" {
		t.Errorf("status: got %+v", st)
	}

	r := w.afs("unmount", m.Dir)
	if r.code != 0 || !strings.Contains(r.stderr, "kept ") || !strings.Contains(r.stderr, "session") {
		t.Errorf("unmount does not report the kept changes: %s", r)
	}
	if out := w.ok("list"); !strings.Contains(out, "unmounted") || !strings.Contains(out, m.Dir) {
		t.Errorf("list printed\n%s", out)
	}
	w.ok("unmount", "--discard", "--yes", m.Dir)
	if out := w.ok("list"); strings.Contains(out, m.Dir) {
		t.Errorf("list after the changes were discarded:\n%s", out)
	}
	w.ok("mount", m.Remote, m.Dir, "--history", "none", "--prefetch", "none")
	if n := readAll(t, m.Dir, files); n > 0 {
		t.Errorf("%d reads failed after the changes were discarded", n)
	}
	if _, err := os.Lstat(m.path("new")); !os.IsNotExist(err) {
		t.Errorf("lstat of a discarded file: got %v, want no such file", err)
	}
}

func TestReadOnlyMount(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("read-only"))
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("r.git"), "--read-only")
	for what, err := range map[string]error{
		"create":   os.WriteFile(m.path("new"), nil, 0o644),
		"write":    os.WriteFile(m.path("known/a"), nil, 0o644),
		"mkdir":    os.Mkdir(m.path("d"), 0o755),
		"remove":   os.Remove(m.path("known/a")),
		"rename":   os.Rename(m.path("known/a"), m.path("x")),
		"chmod":    os.Chmod(m.path("known/a"), 0o755),
		"truncate": os.Truncate(m.path("known/a"), 0),
		"link":     os.Link(m.path("known/a"), m.path("x")),
		"symlink":  os.Symlink("x", m.path("x")),
		"times":    os.Chtimes(m.path("known/a"), time.Now(), time.Now()),
	} {
		wants(t, what, err, unix.EROFS)
	}
	if st := m.status(); !st.ReadOnly {
		t.Error("status reports the mount as writable")
	}
}

// Changes to new files send no request, and an edit of a file fetches at most its neighbourhood.
func TestWritesAreLazy(t *testing.T) {
	w := newWorld(t)
	m := w.meter(w.sized(30, 40), gittest.ServerOptions{})
	mount := w.bare(m.url())
	m.step()
	for i := range 200 {
		check(t, os.WriteFile(mount.path(fmt.Sprintf("d%04d/new%d", i%30, i)), []byte("new"), 0o644))
	}
	for i := range 40 {
		check(t, os.WriteFile(mount.path(fmt.Sprintf("d0003/f%04d.txt", i)), []byte("all anew\n"), 0o644))
	}
	check(t, os.Rename(mount.path("d0004"), mount.path("d0005/d0004")))
	check(t, os.RemoveAll(mount.path("d0006")))
	m.expect("new files, files written anew, rename, rm -rf", m.step(), 0, 0)
	w.shell(mount.Dir, "sed", "-i", "s/directory/DIRECTORY/", "d0007/f0004.txt")
	m.expect("sed -i", m.step(), 1, 33)
	f := must[*os.File](t)(os.OpenFile(mount.path("d0008/f0004.txt"), os.O_APPEND|os.O_WRONLY, 0))
	_ = must[int](t)(f.WriteString("more\n"))
	check(t, f.Close())
	m.expect("append", m.step(), 1, 33)
	if got, want := string(must[[]byte](t)(os.ReadFile(mount.path("d0008/f0004.txt")))),
		w.git(m.repo.Path, "cat-file", "blob", "main:d0008/f0004.txt")+"\nmore\n"; got != want {
		t.Errorf("contents after the append: got %q\nwant %q", got, want)
	}
}

// builds are build tools that use times and inodes to decide whether files have changed.
var builds = []struct {
	name    string
	files   map[string]string
	build   []string
	nothing func(out string) bool // reports whether the output shows that the build did nothing
	outputs []string
	touches bool // a build that does nothing still sets the outputs' times
}{
	{"make", map[string]string{
		"Makefile":  "all: out/a out/b\nout/%: src/%.txt src/common.txt\n\tmkdir -p out && cat $^ >$@\nsrc/%.txt: ;\n",
		"src/a.txt": "a\n", "src/b.txt": "b\n", "src/common.txt": "common\n",
	}, []string{"make"}, func(out string) bool { return strings.Contains(out, "Nothing to be done") },
		[]string{"out/a", "out/b"}, false},
	{"go build", map[string]string{
		"go.mod":  "module example.test/m\n\ngo 1.21\n",
		"main.go": "package main\n\nimport \"example.test/m/p\"\n\nfunc main() { println(p.P) }\n",
		"p/p.go":  "package p\n\nconst P = 1\n",
	}, []string{"go", "build", "-x", "-o", "program", "."},
		func(out string) bool { return !strings.Contains(out, "/compile") && !strings.Contains(out, "/link") },
		[]string{"program"}, true},
	{"an incremental compiler", map[string]string{ // like tsc: a file stores the attributes of the inputs
		"build.sh": "#!/bin/sh\nnow=$(stat -c '%n %i %s %Y.%y' src/*)\n[ \"$now\" = \"$(cat state 2>/dev/null)\" ] && echo nothing && exit\ncat src/* >bundle && echo \"$now\" >state && echo built\n",
		"src/x.ts": "x\n", "src/y.ts": "y\n",
	}, []string{"sh", "build.sh"}, func(out string) bool { return out == "nothing\n" },
		[]string{"bundle", "state"}, false},
}

// A second build finds nothing to do, also after an unmount and after a kill.
func TestBuildsStayBuilt(t *testing.T) {
	t.Parallel()
	for _, b := range builds {
		t.Run(b.name, func(t *testing.T) {
			w := newWorld(t)
			files := map[string]gittest.File{}
			for name, text := range b.files {
				files[name] = gittest.File{Data: []byte(text)}
			}
			w.commit(w.repo("r.git", object.SHA1), files)
			m := w.bare(w.serve(gittest.ServerOptions{}).URL("r.git"))
			run := func() string {
				t.Helper()
				cmd := exec.Command(b.build[0], b.build[1:]...)
				cmd.Dir = m.Dir
				cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false", "GOPROXY=off", "GOTOOLCHAIN=local")
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("run the build: %v: %s", err, out)
				}
				return string(out)
			}
			if out := run(); b.nothing(out) {
				t.Fatalf("the first build built nothing: %s", out)
			}
			before := w.faces(m.Dir)
			for _, name := range b.outputs {
				if _, ok := before[name]; !ok {
					t.Errorf("%s was not built", name)
				}
			}
			still := func(how string) {
				t.Helper()
				if out := run(); !b.nothing(out) {
					t.Errorf("%s the build found something to do: %s", how, out)
				}
				after := w.faces(m.Dir)
				for _, name := range b.outputs {
					was, is := before[name], after[name]
					if b.touches {
						was.mtime, is.mtime = unix.Timespec{}, unix.Timespec{}
					}
					if was != is {
						t.Errorf("%s attributes of %s: got %+v, want %+v", how, name, is, was)
					}
				}
			}
			still("at once")
			w.dropCaches()
			still("after drop_caches")
			m.again(false)
			still("after unmount and mount")
			m.flushed()
			m.again(true)
			still("after a kill")
		})
	}
}

// Common file tools work in a mount, and leave the same files as in a clone.
func TestTools(t *testing.T) {
	w := newWorld(t)
	r := w.storied(object.SHA1)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("storied.git"))
	clone := w.clone("file://" + r.Path)
	for _, script := range []string{
		"cp -a . ../copy-$SIDE && rm -rf ../copy-$SIDE/.git",
		"mkdir in && cp -r $(ls -A | grep -v -e '^.git$' -e '^in$') in/",
		"tar cf - in | (mkdir out && tar xf - -C out)",
		"find out -type f -exec sed -i 's/e/E/g' {} +",
		"find in -type f | sort | head -3 | xargs -I% mv % %.moved",
		"mkdir hard && cp -rl out hard/out",
		"chmod -R go-rwx hard",
		"find out -depth -name '*1*' -exec rm -rf {} +",
		"install -D -m 755 /bin/sh bin/installed && bin/installed -c 'echo ran' >said",
		"ln -sf said link && mv -T link link2 && readlink link2 >>said",
		"dd if=/dev/zero of=sparse bs=1 count=1 seek=300000 2>/dev/null && cp --sparse=always sparse sparse2 && cmp sparse sparse2",
		"split -b 1000 /bin/sh part- && cat part-* | cmp - /bin/sh && rm part-*",
		"for i in $(seq 50); do echo $i >>log; done; tac log >log.tmp && mv log.tmp log",
	} {
		for side, dir := range map[string]string{"mount": m.Dir, "clone": clone} {
			cmd := exec.Command("sh", "-c", script)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "SIDE="+side)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s in the %s: %v: %s", script, side, err, out)
			}
		}
		w.compareTrees(m.Dir, clone)
		if t.Failed() {
			t.Fatalf("mount and clone differ after %s", script)
		}
	}
	m.again(false)
	w.compareTrees(m.Dir, clone)
	w.compareTrees(filepath.Join(filepath.Dir(m.Dir), "copy-mount"), filepath.Join(filepath.Dir(clone), "copy-clone"))
}
