package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

var formats = []object.Format{object.SHA1, object.SHA256}

func TestTrickyTreeEqualsClone(t *testing.T) {
	t.Parallel()
	for _, f := range formats {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			must[object.ID](t)(w.repo("tricky.git", f).Tricky())
			url := w.serve(gittest.ServerOptions{}).URL("tricky.git")
			clone := w.clone(url)
			m := w.mount(url)
			w.compareTrees(m.Dir, clone)
			entries := must[[]os.DirEntry](t)(os.ReadDir(m.path(gittest.TrickyWide)))
			if len(entries) != gittest.TrickyEntries {
				t.Errorf("got %d entries in directory %s", len(entries), gittest.TrickyWide)
			}
			if f != object.SHA1 {
				return
			}
			w.dropCaches()
			w.compareTrees(m.Dir, clone)
		})
	}
}

// odd makes contents of 1 byte to 3 MiB that do not compress, at sizes around those that buffers and pages have.
func odd(n int, rnd *rand.Rand) map[string]gittest.File {
	files := map[string]gittest.File{}
	noise := rand.NewChaCha8([32]byte{byte(n)})
	sizes := []int{0, 1, 4095, 4096, 4097, 3 << 20}
	for _, around := range []int{64 << 10, 128 << 10, 256 << 10, 1 << 20} {
		sizes = append(sizes, around-1, around, around+1, around+4093)
	}
	for len(sizes) < n {
		size := 1 << rnd.IntN(19) // few are large
		sizes = append(sizes, size+rnd.IntN(size))
	}
	for i, size := range sizes {
		data := make([]byte, size)
		noise.Read(data)
		files[fmt.Sprintf("sizes/%d/%03d-%d", i%7, i, size)] = gittest.File{Data: data}
	}
	return files
}

// conversions are contents that a checkout changes, and contents that resemble them but stay unchanged.
func conversions() map[string]gittest.File {
	contents := map[string]string{
		"lf":     "one\ntwo\nthree\n",
		"crlf":   "one\r\ntwo\r\nthree\r\n",
		"mixed":  "one\r\ntwo\nthree\r\n",
		"cr":     "one\rtwo\rthree\n",
		"noeol":  "one\ntwo",
		"binary": "one\n\x00two\n",
		"ident":  "$Id$ and $Id: what it was before $ and $Idea$\n$Id$ $Id: no end\n",
		"empty":  "",
		"long":   strings.Repeat("a line of text that is converted\n", 40_000),
	}
	files := map[string]gittest.File{
		".gitattributes": {Data: []byte("*.crlf text eol=crlf\n*.lf text eol=lf\n*.auto text=auto\n*.autocrlf text=auto eol=crlf\n*.id ident\n" +
			"*.both eol=crlf ident\n*.off -text\n[attr]mine text eol=crlf\n*.macro mine\nsub/*.deep eol=crlf\n")},
		"sub/.gitattributes":      {Data: []byte("*.crlf -text\n/*.lf eol=crlf\n")},
		"sub/deep/.gitattributes": {Data: []byte("*.crlf !text eol=crlf\n* ident\n")},
		"sub/link.crlf":           {Data: []byte("to/no\nwhere"), Mode: "120000"},
		"sub/run.crlf":            {Data: []byte("#!/bin/sh\n"), Mode: "100755"},
	}
	for _, dir := range []string{"", "sub/", "sub/deep/", "other/"} {
		for _, ext := range []string{"none", "crlf", "lf", "auto", "autocrlf", "id", "both", "off", "macro", "deep"} {
			for name, content := range contents {
				if name != "long" || dir == "" {
					files[dir+name+"."+ext] = gittest.File{Data: []byte(content)}
				}
			}
		}
	}
	return files
}

func TestEverySizeEqualsClone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.repo("odd.git", object.SHA1)
	w.commit(r, odd(300, rand.New(rand.NewPCG(1, 2))))
	s := w.serve(gittest.ServerOptions{})
	url := s.URL("odd.git")
	clone := w.clone(url)
	m := w.mount(url)
	w.compareTrees(m.Dir, clone)
	w.dropCaches()
	w.compareTrees(m.Dir, clone)

	// A second mount, and a mount of a new daemon, use the contents that the first mount has fetched.
	s.forget()
	w.compareTrees(w.mount(url).Dir, clone)
	w.ok("unmount", "--all")
	w.compareTrees(w.mount(url).Dir, clone)
	if _, n := s.Log().Blobs(); n != 0 {
		t.Errorf("later mounts fetched %d blobs again\n%s", n, s.Log())
	}
}

func TestConversionsEqualClone(t *testing.T) {
	t.Parallel()
	for _, autocrlf := range []string{"", "true", "input"} {
		t.Run("autocrlf="+autocrlf, func(t *testing.T) {
			w := newWorld(t)
			r := w.repo("conv.git", object.SHA1)
			w.commit(r, conversions())
			url := w.serve(gittest.ServerOptions{}).URL("conv.git")
			var args []string
			if autocrlf != "" {
				args = []string{"-c", "core.autocrlf=" + autocrlf}
				w.env = []string{"GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_1=core.autocrlf", "GIT_CONFIG_VALUE_1=" + autocrlf}
			}
			clone := w.clone(url, args...)
			m := w.mount(url)
			w.compareTrees(m.Dir, clone)
			w.dropCaches()
			w.compareTrees(m.Dir, clone)
		})
	}
}

// The user's umask, core.symlinks=false, clone.defaultRemoteName and a small core.bigFileThreshold have the same
// effects as in a clone, also for a successor and after a restart, whose processes have another umask.
func TestSettingsEqualClone(t *testing.T) {
	w := newWorld(t)
	config := filepath.Join(w.root, "gitconfig")
	for _, s := range []string{"core.symlinks=false", "clone.defaultRemoteName=upstream", "core.bigFileThreshold=1"} {
		key, value, _ := strings.Cut(s, "=")
		w.git(w.root, "config", "--file", config, key, value)
	}
	w.env = append(w.env, "GIT_CONFIG_GLOBAL="+config)
	r := w.repo("settings.git", object.SHA1)
	w.commit(r, map[string]gittest.File{".gitattributes": {Data: []byte("* text eol=crlf\n")},
		"dir/link": {Data: []byte("a\nb"), Mode: "120000"},
		"dir/run":  {Data: []byte("#!/bin/sh\n"), Mode: "100755"}, "file": {Data: []byte("text\n")}})
	url := w.serve(gittest.ServerOptions{}).URL("settings.git")
	sh := func(dir, script string, args ...string) string {
		t.Helper()
		cmd := exec.Command("sh", append([]string{"-c", "umask 077; " + script, binary}, args...)...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), w.env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
		return string(out)
	}
	clone, m := w.place("c"), mounted{w: w}
	sh(w.root, `git clone -q "$@"`, url, clone)
	check(t,
		json.Unmarshal([]byte(sh(w.root, `"$0" "$@"`, "--state", w.state, "mount", url, w.place("m"), "--json", "--wait",
			"git")), &m.MountReply))
	w.compareTrees(m.Dir, clone)
	// The link stays a link for git, although a program has replaced it by a file.
	change :=
		`echo c >dir/new && mv dir/new dir/link && echo new >new && git -c user.name=t -c user.email=t@t commit -q -m 1 dir/link 2>&1 &&
		git add new 2>&1 && git status --short && git ls-tree HEAD dir/ && git rev-parse --abbrev-ref @{u}`
	if got, want := sh(m.Dir, change), sh(clone, change); got != want || !strings.Contains(got, "120000 blob") {
		t.Errorf("git in the mount: got %q, want %q", got, want)
	}
	w.compareTrees(m.Dir, clone)
	w.ok("checkpoint", m.Dir)
	repo := filepath.Join(w.state, "mounts", m.ID, "session.git")
	ref := w.git(repo, "for-each-ref", "--format=%(refname)", "refs/afs/j")
	if got, want := w.git(repo, "ls-tree", strings.TrimSpace(ref), "dir/"),
		w.git(m.Dir, "ls-tree", "HEAD", "dir/"); got != want {
		t.Errorf("checkpoint: got %q, want %q", got, want)
	}
	old := w.serving()
	check(t, syscall.Kill(old, syscall.SIGKILL))
	w.until("another worker serves", func() bool { pid := w.victim().Serving(); return pid != 0 && pid != old })
	w.dropCaches()
	w.compareTrees(m.Dir, clone)
	w.killDaemon()
	w.ok("mount", url, m.Dir, "--wait", "git")
	w.compareTrees(m.Dir, clone)
}

func TestTransportsEqualClone(t *testing.T) {
	t.Parallel()
	files := odd(60, rand.New(rand.NewPCG(3, 4)))
	for name, f := range conversions() {
		files[name] = f
	}
	for _, f := range formats {
		for _, scheme := range []string{"http", "ssh", "git", "file", "path"} {
			t.Run(f.String()+" "+scheme, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				r := w.repo("some.git", f)
				w.commit(r, files)
				url, args := w.open(scheme, "some.git")
				clone := w.clone(url, args...)
				m := w.mount(url)
				w.compareTrees(m.Dir, clone)
				m.await("history is complete", complete)
			})
		}
	}
}

// open serves the world's repositories by a scheme. args are the options with which git clone reaches the server; the
// world's commands reach it by their environment.
func (w *world) open(scheme, repo string) (url string, args []string) {
	w.Helper()
	o := gittest.ServerOptions{Root: w.repos}
	switch scheme {
	case "http":
		return w.serve(o).URL(repo), nil
	case "ssh":
		s, command, err := gittest.ServeSSH(o)
		if err != nil {
			w.Fatal(err)
		}
		w.Cleanup(func() { s.Close() })
		w.env = append(w.env, "GIT_SSH_COMMAND="+command)
		return s.URL(repo), []string{"-c", "core.sshCommand=" + command}
	case "git":
		s := must[*gittest.Server](w)(gittest.ServeGitDaemon(o))
		w.Cleanup(func() { s.Close() })
		return s.URL(repo), nil
	case "file":
		return "file://" + filepath.Join(w.repos, repo), nil
	}
	return filepath.Join(w.repos, repo), nil
}

// A file of one GiB is read piece by piece, and the daemon never holds it.
func TestHugeFile(t *testing.T) {
	const size, block, most = 1 << 30, 1<<20 + 13, 200 << 10 // most: KiB
	w := newWorld(t)
	r := w.repo("huge.git", object.SHA1)
	plain := filepath.Join(w.root, "huge")
	f := must[*os.File](t)(os.Create(plain))
	defer f.Close()
	for at := int64(0); at < size; at += 1 << 20 { // no two blocks are equal, and nearly all bytes are zero
		must[int](t)(f.WriteAt(fmt.Appendf(nil, "block %d", at), at))
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	w.git(r.Path, "config", "core.compression", "1")
	id := w.git(r.Path, "hash-object", "-w", plain)
	w.git(r.Path, "update-index", "--add", "--cacheinfo", "100644,"+id+",huge")
	w.git(r.Path, "update-ref", "refs/heads/main", w.git(r.Path, "commit-tree", "-m", "Huge", w.git(r.Path, "write-tree")))

	url := w.serve(gittest.ServerOptions{Cheap: true}).URL("huge.git")
	m := w.mount(url, "--prefetch", "none", "--timeout", "10m")
	pid := m.status().PID
	got := must[*os.File](t)(os.Open(m.path("huge")))
	defer got.Close()
	a, b := make([]byte, block), make([]byte, block)
	for at := 0; at < size; at += block {
		n, err := io.ReadFull(got, a)
		must[int64](t)(f.Seek(int64(at), io.SeekStart))
		k, _ := io.ReadFull(f, b)
		if n != k || !bytes.Equal(a[:n], b[:k]) {
			t.Fatalf("read at offset %d: got %d bytes, %v; want %d%s", at, n, err, k, where(a[:n], b[:k]))
		}
	}
	if n, err := got.Read(a); n != 0 || err != io.EOF {
		t.Errorf("read behind the end: got %d bytes, %v", n, err)
	}
	peak := peakMemory(t, pid)
	t.Logf("peak memory of the daemon: %d MiB", peak>>10)
	if peak > most {
		t.Errorf("the daemon took %d KiB of memory, want at most %d", peak, most)
	}
}

// peakMemory returns the largest resident set of a process so far, in KiB.
func peakMemory(t *testing.T, pid int) int {
	t.Helper()
	status := must[[]byte](t)(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))
	for line := range strings.Lines(string(status)) {
		var kib int
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			return kib
		}
	}
	t.Fatal("the status of the process has no line VmHWM")
	return 0
}

func TestInodesAndTimesAreStable(t *testing.T) {
	w := newWorld(t)
	r := w.sized(20, 20)
	commit := w.commit(r, map[string]gittest.File{"link": {Data: []byte("d0001"), Mode: "120000"}})
	var seconds int64
	if _, err := fmt.Sscan(w.git(r.Path, "log", "-1", "--format=%ct", commit.String()), &seconds); err != nil {
		t.Fatal(err)
	}
	m := w.mount(w.serve(gittest.ServerOptions{}).URL("sized.git"))
	look := func() map[string]uint64 {
		inodes := map[string]uint64{}
		for path, info := range listTree(w, m.Dir) {
			inodes[path] = info.Sys().(*syscall.Stat_t).Ino
			if info.ModTime().Unix() != seconds {
				t.Fatalf("mtime of %s: got %v, want the time of the commit, %d", path, info.ModTime(), seconds)
			}
		}
		return inodes
	}
	first := look()
	seen := map[uint64]string{}
	for path, ino := range first {
		if other, ok := seen[ino]; ok {
			t.Errorf("%s and %s both have inode %d", path, other, ino)
		}
		seen[ino] = path
	}
	for _, after := range []string{"at once", "after drop_caches"} {
		for path, ino := range look() {
			if first[path] != ino {
				t.Errorf("%s: %s has inode %d, had %d", after, path, ino, first[path])
			}
		}
		w.dropCaches()
	}
}
