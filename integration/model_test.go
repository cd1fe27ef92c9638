package integration

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// The model test runs the same random operations on two trees, one of them on a plain file system, and compares the
// result of each operation and the trees afterwards. The plain tree is the oracle: the test has no model of POSIX.
//
// Terms: a side is one of the two trees; an op is one operation that is run on both; the outcome of an op is its errno
// and its results, as text.

const (
	modelPaths   = 250 // the tree is pruned when it has more
	modelHandles = 8   // files kept open at a time
	modelHistory = 40  // number of ops that a failure prints
)

// side is one of the two trees. wrong is used by the test of the model test: the side skips the ops for which it
// returns true.
type side struct {
	name  string
	root  string
	open  map[int]int // descriptors by handle
	wrong func(o *op) bool
}

func newSide(name, root string) *side { return &side{name: name, root: root, open: map[int]int{}} }

func (s *side) path(p string) string { return filepath.Join(s.root, p) }

func (s *side) closeAll() {
	for h, fd := range s.open {
		unix.Close(fd)
		delete(s.open, h)
	}
}

func (s *side) do(o *op) string {
	if s.wrong != nil && s.wrong(o) {
		return ""
	}
	return o.do(s)
}

// op is one operation. After it, the files at paths and the file of handle are compared.
type op struct {
	kind   string
	text   string
	paths  []string
	handle int // 0: none
	// writes says that the contents of files at paths or of handle may wait in the kernel until a process syncs them.
	writes bool
	// atomic says that the op is one change of the namespace or of attributes: after a crash it happened or it did not.
	atomic bool
	do     func(s *side) string
}

// model runs ops on both sides.
type model struct {
	plain, other *side
	rnd          *rand.Rand
	step         int
	history      []string
	known        []string     // paths that existed at some time
	handles      map[int]bool // open ones; true: open for writing
	lastHandle   int
	// unsynced are the files, by the plain side's identity, whose last writes the kernel may not have written back yet.
	unsynced map[identity]bool
	numbers  map[identity]uint64 // inode numbers of the other side, as long as the plain side's file exists
	kinds    map[string]int      // how often each kind of op succeeded
}

// identity distinguishes a file from all others of its side, also from a removed file whose inode number was reused.
type identity struct {
	ino  uint64
	born unix.StatxTimestamp
}

func identityOf(path string, fd int) (identity, error) {
	var st unix.Statx_t
	flags := unix.AT_SYMLINK_NOFOLLOW
	if path == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	err := retry(func() error { return unix.Statx(fd, path, flags, unix.STATX_INO|unix.STATX_BTIME, &st) })
	return identity{st.Ino, st.Btime}, err
}

func newModel(plain, other *side, seed uint64) (*model, error) {
	m := &model{plain: plain, other: other, rnd: rand.New(rand.NewPCG(seed, 1)), handles: map[int]bool{},
		unsynced: map[identity]bool{}, numbers: map[identity]uint64{}, kinds: map[string]int{}}
	m.learn(".")
	return m, m.compareAll()
}

// learn adds all paths below a path of the plain side to the known paths, from which ops choose.
func (m *model) learn(below string) {
	filepath.WalkDir(m.plain.path(below), func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		rel, _ := filepath.Rel(m.plain.root, path)
		if rel == ".git" {
			return filepath.SkipDir
		}
		if rel != "." && !slices.Contains(m.known, rel) {
			m.known = append(m.known, rel)
		}
		return nil
	})
}

// run does n steps.
func (m *model) run(n int, every int) error {
	for range n {
		if err := m.one(m.next()); err != nil {
			return err
		}
		if m.step%every == 0 {
			if err := m.compareAll(); err != nil {
				return m.failed("trees differ", err)
			}
		}
	}
	return nil
}

// one runs an op on both sides and compares.
func (m *model) one(o *op) error {
	m.begin(o)
	want := m.plain.do(o)
	got := m.other.do(o)
	return m.settle(o, want, got)
}

func (m *model) begin(o *op) {
	m.step++
	m.history = append(m.history, fmt.Sprintf("%d: %s", m.step, o.text))
	if len(m.history) > modelHistory {
		m.history = m.history[1:]
	}
	if traceModel {
		fmt.Println(m.history[len(m.history)-1])
	}
	if o.writes {
		m.written(o) // also before the op, which may truncate, rename or unlink the file
	}
}

// settle compares the outcomes of an op and the files that it touched.
func (m *model) settle(o *op, want, got string) error {
	if want != got {
		return m.failed(fmt.Sprintf("%s answered %s, want %s", m.other.name, short(got), short(want)), nil)
	}
	if !strings.HasPrefix(want, "E") && !strings.HasPrefix(want, "open: ") {
		m.kinds[o.kind]++
	}
	if o.writes {
		m.written(o)
	}
	for _, p := range o.paths {
		if err := m.comparePath(p); err != nil {
			return m.failed("after it", err)
		}
		if _, err := os.Lstat(m.plain.path(p)); err == nil && p != "." && !slices.Contains(m.known, p) {
			m.known = append(m.known, p)
		}
	}
	if _, ok := m.plain.open[o.handle]; ok {
		if err := m.compareHandle(o.handle); err != nil {
			return m.failed("after it", err)
		}
	}
	return nil
}

// written notes the files whose contents an op may have changed.
func (m *model) written(o *op) {
	for _, p := range o.paths {
		if real, err := filepath.EvalSymlinks(m.plain.path(p)); err == nil {
			if id, err := identityOf(real, unix.AT_FDCWD); err == nil {
				m.unsynced[id] = true
			}
		}
	}
	if fd, ok := m.plain.open[o.handle]; ok {
		if id, err := identityOf("", fd); err == nil {
			m.unsynced[id] = true
		}
	}
}

func (m *model) closeHandles() {
	m.plain.closeAll()
	m.other.closeAll()
	m.handles = map[int]bool{}
}

func (m *model) failed(what string, err error) error {
	text := fmt.Sprintf("step %d: %s", m.step, what)
	if err != nil {
		text += ": " + err.Error()
	}
	return fmt.Errorf("%s\nthe last steps:\n%s", text, strings.Join(m.history, "\n"))
}

// short shortens a text that an op has read.
func short(s string) string {
	if len(s) > 200 {
		s = s[:200] + "..."
	}
	return fmt.Sprintf("%q", s)
}

// retry calls f until no signal interrupts it; Go's runtime sends them.
func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// outcome is the errno or the results of an op.
func outcome(err error, returned ...any) string {
	if err != nil {
		var errno unix.Errno
		if errors.As(err, &errno) {
			return unix.ErrnoName(errno)
		}
		return err.Error()
	}
	return fmt.Sprint(returned...)
}
