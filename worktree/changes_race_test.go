package worktree_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	. "github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// looker stores the attributes of every path, as an index does, and reads them again only for paths that Changes
// reports.
type looker struct {
	*workspace
	token string
	seen  map[string]string
}

// again queries the changes and reads the reported paths.
func (l *looker) again() {
	c, err := l.Monitor().Changes(l.token)
	l.ok(err)
	if c.All {
		l.t.Errorf("journal position %s is not known", l.token)
	}
	l.token = c.Token
	for _, at := range c.Paths {
		if strings.HasSuffix(at, "/*") {
			continue
		}
		dir, below := strings.CutSuffix(at, "/")
		if below {
			for seen := range l.seen {
				if strings.HasPrefix(seen, at) {
					delete(l.seen, seen)
				}
			}
		}
		delete(l.seen, dir)
		l.look(dir)
	}
}

// look reads a path, and all paths below a directory.
func (l *looker) look(at string) {
	ctx := l.t.Context()
	n, err := l.Resolve(ctx, at)
	if errors.Is(err, ErrNotExist) || errors.Is(err, ErrNotDir) {
		return
	}
	l.ok(err)
	a, err := l.Attr(ctx, n)
	if errors.Is(err, ErrNoNode) {
		return // the path was removed at the same time
	}
	l.ok(err)
	if a.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		data := make([]byte, 100)
		k, err := l.Read(ctx, n, data, 0)
		if err == nil {
			l.seen[at] = fmt.Sprintf("%o %q", a.Mode, data[:k])
		}
		return
	}
	var names []string
	_ = l.ReadDir(ctx, n, 0, func(e Entry) bool { names = append(names, strings.Clone(e.Name)); return true })
	for _, name := range names {
		l.look(path.Join(at, name))
	}
}

// A client that reads the reported paths again has the right state in the end, also if changes are made during its
// queries.
func TestChangesWhileChanging(t *testing.T) {
	files := map[string]worktreetest.File{}
	for i := range 60 {
		files[fmt.Sprintf("d%d/s%d/f%d", i%3, i%5, i)] = worktreetest.File{Data: fmt.Sprint("data of ", i)}
	}
	w := newWorkspace(t, files)
	ctx := t.Context()
	lookers := make([]*looker, 2)
	for i := range lookers {
		lookers[i] = &looker{w, w.Monitor().StartToken(), map[string]string{}}
		lookers[i].look("")
	}
	copies := []*copied{newCopied(w), newCopied(w)}
	copies[0].Token = w.Monitor().StartToken()
	var writers, all sync.WaitGroup
	var stopped atomic.Bool
	names := strings.Fields("d0 d1 d2 s0 s1 s2 f0 f1 f2 f3")
	for i := range 4 {
		rng := rand.New(rand.NewPCG(rand.Uint64(), uint64(i)))
		dir := func() (Node, bool) {
			at := ""
			for range rng.IntN(3) {
				at = path.Join(at, names[rng.IntN(6)])
			}
			n, err := w.Resolve(ctx, at)
			if err != nil {
				return 0, false
			}
			a, err := w.Attr(ctx, n)
			return n, err == nil && a.Mode&syscall.S_IFMT == syscall.S_IFDIR
		}
		writers.Go(func() {
			for range 4000 {
				from, ok := dir()
				to, too := dir()
				if !ok || !too {
					continue
				}
				name, newName := names[rng.IntN(len(names))], names[rng.IntN(len(names))]
				a, err := w.Lookup(ctx, from, name)
				// Errors are expected, because others make the same changes at the same time.
				switch op := rng.IntN(12); {
				case op < 4 && err == nil:
					w.Write(ctx, a.Node, fmt.Append(nil, rng.IntN(1000)), int64(rng.IntN(20)), false)
				case op < 4:
					w.Mknod(ctx, from, name, syscall.S_IFREG|0o644, 0, Cred{})
				case op == 4:
					w.Mkdir(ctx, from, name, 0o755, Cred{})
				case op == 5:
					w.Unlink(ctx, from, name)
				case op == 6:
					w.Rmdir(ctx, from, name)
				case op == 7 && err == nil:
					w.Link(ctx, a.Node, to, newName)
				case op == 8 && err == nil:
					w.SetAttr(ctx, a.Node, Change{Set: SetMode, Mode: 0o600 | uint32(rng.IntN(64))})
				case op == 9 && err == nil:
					w.SetAttr(ctx, a.Node, Change{Set: SetSize, Size: int64(rng.IntN(20))})
				case op == 10:
					w.Rename(ctx, from, name, to, newName, unix.RENAME_EXCHANGE)
				default:
					w.Rename(ctx, from, name, to, newName, 0)
				}
			}
		})
	}
	for _, l := range lookers {
		all.Go(func() {
			for !stopped.Load() {
				l.again()
			}
			l.again()
		})
	}
	for _, c := range copies {
		all.Go(func() {
			for !stopped.Load() {
				c.freeze(w, FreezeOptions{}).Release()
			}
			c.freeze(w, FreezeOptions{}).Release()
		})
	}
	writers.Wait()
	stopped.Store(true)
	all.Wait()
	for i, c := range copies {
		c.compare(w, fmt.Sprint("copy ", i))
	}
	truth := &looker{w, "", map[string]string{}}
	truth.look("")
	for i, l := range lookers {
		for at, is := range truth.seen {
			if l.seen[at] != is {
				t.Errorf("looker %d: path %s is %s, but the looker has %q", i, at, is, l.seen[at])
			}
		}
		for at, was := range l.seen {
			if _, ok := truth.seen[at]; !ok {
				t.Errorf("looker %d: path %s was removed, but the looker has %q", i, at, was)
			}
		}
	}
}

// Attributes of a file that is removed at the same time are those before its removal, or the error ErrNoNode.
func TestAttrOfRemovedFile(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"f": {Data: "x"}})
	ctx := t.Context()
	var last atomic.Uint64
	var stopped atomic.Bool
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for !stopped.Load() {
				if _, err := w.Attr(ctx, Node(last.Load())); err != nil && !errors.Is(err, ErrNoNode) {
					t.Errorf("attributes of a removed file: %v", err)
					stopped.Store(true)
				}
			}
		})
	}
	last.Store(uint64(Root))
	for range 3000 {
		a, err := w.Mknod(ctx, Root, "g", syscall.S_IFREG|0o644, 0, Cred{})
		w.ok(err)
		_, err = w.Write(ctx, a.Node, []byte("y"), 0, false)
		w.ok(err)
		last.Store(uint64(a.Node))
		w.ok(w.Unlink(ctx, Root, "g"))
	}
	stopped.Store(true)
	readers.Wait()
}
