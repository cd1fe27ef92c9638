package worktree_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	. "github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/overlay"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// TestModel runs the same random operations on a tree and on a plain directory of the host's file system, which is the
// oracle for results and contents. The tree is closed and opened again now and then, and killed: the operations run in
// child processes that end by SIGKILL, some of which take over the kernel's state from the previous one. AFS_MODEL_SEED
// and AFS_MODEL_STEPS select other runs.
func TestModel(t *testing.T) {
	if life := os.Getenv(modelEnv); life != "" {
		runLife(t, life)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("changing owners needs root")
	}
	seed, steps := uint64(time.Now().UnixNano()), 6000
	if testing.Short() {
		steps = 2000
	}
	if n, err := strconv.ParseUint(os.Getenv("AFS_MODEL_SEED"), 10, 64); err == nil {
		seed = n
	}
	if n, err := strconv.Atoi(os.Getenv("AFS_MODEL_STEPS")); err == nil {
		steps = n
	}
	t.Logf("AFS_MODEL_SEED=%d AFS_MODEL_STEPS=%d", seed, steps)
	dir := t.TempDir()
	layBase(t, filepath.Join(dir, "plain"))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	life := uint64(1)
	for ; steps > 0; life++ {
		n := 1 + rng.IntN(400)
		steps -= n
		victim := exec.CommandContext(t.Context(), self, "-test.run=^TestModel$", "-test.timeout=120s")
		victim.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %d %s", modelEnv, seed, life, n, dir))
		out, err := victim.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("seed %d, life %d of %d steps: %v\n%s", seed, life, n, err, out)
		}
	}
	defer unix.Umask(unix.Umask(0)) // this process may have to perform the last request of the previous one
	w := &workspace{t: t, src: worktreetest.New(modelBase()), dir: dir}
	m := &model{workspace: w, rng: rng, plain: filepath.Join(dir, "plain"), what: "end"}
	if w.takeOver = takesOver(seed, life); w.takeOver {
		m.takeOverFrom(life - 1)
	} else {
		w.open()
	}
	m.compare()
	m.closeFiles()
	w.close()
	report, err := overlay.Check(filepath.Join(dir, "overlay"), false, "")
	if err != nil || len(report.Findings) != 0 {
		t.Errorf("check of the overlay: got %+v, %v", report.Findings, err)
	}
}

const modelEnv = "WORKTREE_TEST_MODEL"

// runLife is one process of the model test.
func runLife(t *testing.T, life string) {
	var seed, number uint64
	var steps int
	var dir string
	if _, err := fmt.Sscan(life, &seed, &number, &steps, &dir); err != nil {
		t.Fatal(err)
	}
	unix.Umask(0)
	w := &workspace{t: t, src: worktreetest.New(modelBase()), dir: dir}
	w.src.KnowsSizes.Store(number%2 == 0)
	w.takeOver = takesOver(seed, number)
	m := &model{workspace: w, rng: rand.New(rand.NewPCG(seed, number)), plain: filepath.Join(dir, "plain"), what: "start"}
	if w.takeOver {
		m.takeOverFrom(number - 1)
	} else {
		w.open()
	}
	m.compare() // the state that the previous process left
	seen := m.takeLooks()
	for _, s := range seen {
		m.trust(s)
	}
	copiers := takeCopiers(m)
	for i := range steps {
		m.what = fmt.Sprintf("step %d", i)
		m.step()
		seen = m.lookers(seen)
		copiers.step(m)
		if m.rng.IntN(150) == 0 {
			m.compare()
		}
		if m.rng.IntN(200) == 0 {
			m.closeFiles()
			copiers.dropAll(m)
			before := m.nodes()
			w.reopen()
			if after := m.nodes(); !slices.Equal(before, after) {
				t.Errorf("%s: nodes differ before and after reopening: %q, %q", m.what, before, after)
			}
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	m.keepLooks(seen)
	copiers.keep(m)
	m.step()
	if takesOver(seed, number+1) {
		m.dieBusy(number)
	}
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

// modelNames are all names that operations use. There are few, so that operations affect the same paths.
var modelNames = strings.Fields("a b c d e f g h")

// modelBase is a tree three directories deep.
func modelBase() map[string]worktreetest.File {
	files := map[string]worktreetest.File{
		"a": {Data: "small\n"}, "b": {Data: strings.Repeat("executable\n", 900), Mode: object.ModeExec},
		"c": {Data: "a", Mode: object.ModeSymlink}, "d": {Mode: object.ModeGitlink}, "e/a": {},
	}
	for i, dir := range []string{"e", "e/f", "e/f/g", "g", "g/h"} {
		for j, name := range []string{"b", "c", "d"} {
			files[dir+"/"+name] = worktreetest.File{Data: strings.Repeat(dir+name, i*i*j*300)}
		}
	}
	return files
}

// layBase creates the base tree as plain files.
func layBase(t *testing.T, dir string) {
	t.Helper()
	var err error
	join := func(e error) { err = errors.Join(err, e) }
	join(os.Mkdir(dir, 0o755))
	for path, f := range modelBase() {
		path = filepath.Join(dir, path)
		join(os.MkdirAll(filepath.Dir(path), 0o755))
		switch f.Mode {
		case object.ModeGitlink:
			join(os.Mkdir(path, 0o755))
		case object.ModeSymlink:
			join(os.Symlink(f.Data, path))
		case object.ModeExec:
			join(os.WriteFile(path, []byte(f.Data), 0o755))
		default:
			join(os.WriteFile(path, []byte(f.Data), 0o644))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// model is a tree and the plain directory that it must be equal to.
type model struct {
	*workspace
	rng   *rand.Rand
	plain string
	files []modelFile
	what  string

	requests uint64 // number of requests of the kernel so far
}

// modelFile is an open file.
type modelFile struct {
	node Node
	fd   int
}

// same compares the results of an operation on both sides.
func (m *model) same(what string, got, want error) bool {
	m.t.Helper()
	if a, b := errnoOf(got), errnoOf(want); a != b {
		m.t.Errorf("%s: %s: %v, plain directory: %v", m.what, what, got, want)
	}
	return got == nil && want == nil
}

func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrNotExist):
		return syscall.ENOENT
	case errors.Is(err, ErrNotDir):
		return syscall.ENOTDIR
	case errors.Is(err, ErrIsDir):
		return syscall.EISDIR
	case errors.As(err, &errno):
		return errno
	}
	return syscall.EIO
}

// compare compares both trees.
func (m *model) compare() {
	m.t.Helper()
	m.compareDir("", Root)
}

func (m *model) compareDir(path string, n Node) {
	m.t.Helper()
	entries, err := os.ReadDir(filepath.Join(m.plain, path))
	m.ok(err)
	var want []string
	for _, e := range entries {
		want = append(want, e.Name())
	}
	got := m.listInPieces(n)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		m.t.Errorf("%s: listing of %q: got %q, want %q", m.what, path, got, want)
		return
	}
	for _, name := range want {
		a, err := m.Lookup(m.t.Context(), n, name)
		m.ok(err)
		m.compareNode(filepath.Join(path, name), a.Node)
	}
}

// listInPieces reads a directory in several calls, as the kernel does.
func (m *model) listInPieces(n Node) (list []string) {
	from, more := uint64(0), true
	for more {
		more = false
		left := 1 + m.rng.IntN(5)
		m.ok(m.ReadDir(m.t.Context(), n, from, func(e Entry) bool {
			if more = left == 0; more {
				return false
			}
			list, from, left = append(list, strings.Clone(e.Name)), e.Next, left-1
			return true
		}))
	}
	return list
}

func (m *model) compareNode(path string, n Node) {
	m.t.Helper()
	a, err := m.Attr(m.t.Context(), n)
	m.ok(err)
	var st unix.Stat_t
	m.ok(unix.Lstat(filepath.Join(m.plain, path), &st))
	type attributes struct {
		mode, uid, gid uint32
		nlink, rdev    uint64
		size           int64
	}
	got := attributes{a.Mode, a.UID, a.GID, uint64(a.Nlink), uint64(a.Rdev), a.Size}
	want := attributes{st.Mode, st.Uid, st.Gid, uint64(st.Nlink), st.Rdev, st.Size}
	if st.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		want.size = 4096
		if !n.Own() || want.nlink == 1 { // some file systems do not count subdirectories
			want.nlink, got.nlink = 1, min(got.nlink, 1)
		}
	}
	if got != want {
		m.t.Errorf("%s: attributes of %s: got %+v, want %+v", m.what, path, got, want)
	}
	// A file that had several names may not know the name that is left.
	known := st.Mode&syscall.S_IFMT == syscall.S_IFDIR
	if at, err := m.Path(n); known && err != nil || err == nil && (known || st.Nlink == 1) && at != path {
		m.t.Errorf("%s: path of %s: got %q, %v", m.what, path, at, err)
	}
	switch st.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		m.compareXattrs(path, n)
		m.compareDir(path, n)
	case syscall.S_IFREG:
		m.compareXattrs(path, n)
		data, err := os.ReadFile(filepath.Join(m.plain, path))
		m.ok(err)
		p := make([]byte, len(data)+100)
		k, err := m.Read(m.t.Context(), n, p, 0)
		m.ok(err)
		if !bytes.Equal(p[:k], data) {
			m.t.Errorf("%s: contents of %s differ: got %d bytes, want %d", m.what, path, k, len(data))
		}
	case syscall.S_IFLNK:
		target, err := m.Readlink(m.t.Context(), n)
		m.ok(err)
		if want, _ := os.Readlink(filepath.Join(m.plain, path)); string(target) != want {
			m.t.Errorf("%s: target of %s: got %q, want %q", m.what, path, target, want)
		}
	}
}

func (m *model) compareXattrs(path string, n Node) {
	m.t.Helper()
	buf := make([]byte, 1000)
	k, err := unix.Llistxattr(filepath.Join(m.plain, path), buf)
	m.ok(err)
	want := strings.FieldsFunc(string(buf[:k]), func(r rune) bool { return r == 0 })
	got, err := m.Xattrs().List(n)
	m.ok(err)
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		m.t.Errorf("%s: extended attributes of %s: got %q, want %q", m.what, path, got, want)
		return
	}
	for _, name := range got {
		k, err := unix.Lgetxattr(filepath.Join(m.plain, path), name, buf)
		m.ok(err)
		if v, err := m.Xattrs().Get(n, name); err != nil || !bytes.Equal(v, buf[:k]) {
			m.t.Errorf("%s: %s: %s is %q, %v, want %q", m.what, path, name, v, err, buf[:k])
		}
	}
}

// nodes lists every path with its node.
func (w *workspace) nodes() (list []string) {
	var visit func(path string, dir Node)
	visit = func(path string, dir Node) {
		var dirs []Entry
		w.ok(w.ReadDir(w.t.Context(), dir, 0, func(e Entry) bool {
			e.Name = path + "/" + e.Name
			list = append(list, fmt.Sprint(e.Name, e.Node))
			if e.Mode&syscall.S_IFMT == syscall.S_IFDIR {
				dirs = append(dirs, e)
			}
			return true
		}))
		for _, e := range dirs {
			visit(e.Name, e.Node)
		}
	}
	visit("", Root)
	slices.Sort(list)
	return list
}

func (m *model) closeFiles() {
	for _, f := range m.files {
		unix.Close(f.fd)
		m.Kernel().Forget(f.node, 1)
	}
	m.files = nil
}
