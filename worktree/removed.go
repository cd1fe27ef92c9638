package worktree

import (
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/overlay"
)

// A checkpoint is made when writes have settled, so what was written a moment ago and is removed again is in none. The Tree
// therefore keeps what files hold that lose their last name, are replaced by a rename or are cut to nothing, if they were
// changed since the last checkpoint (Saved): the content stays where it is, pinned in the overlay. When many are lost at
// once, MassRemoval asks for a checkpoint, and TakeRemoved gives it what was there. It is kept in memory: a process that is
// killed before that checkpoint loses it.
const (
	massRemoved   = 5                // more paths than this within massTime, or any in a directory that is removed, are a mass
	massTime      = time.Second      //
	keepRemoved   = 10 * time.Second // longest time that removed files wait for a checkpoint
	maxRemoved    = 10_000           // files that are kept
	maxRemovedOne = 50 << 20         // bytes of one of them; larger new files are in no checkpoint either
	maxRemovedAll = 256 << 20        // bytes of all of them, on disk
	maxSearched   = 2000             // names in a directory, to find that of a file which is cut to nothing
)

// Removed is a file that was removed or overwritten.
type Removed struct {
	FrozenEntry // FrozenContent or FrozenLink
	at          time.Time
	unlinked    bool         // else it was overwritten
	pin         *overlay.Pin // nil of a link
}

// removals is what the Tree keeps of files that are gone.
type removals struct {
	on      atomic.Bool                     // somebody makes checkpoints
	since   atomic.Int64                    // what was changed before is in one: nanoseconds since 1970
	ignored atomic.Pointer[map[string]bool] // directories that checkpoints leave out
	mass    chan struct{}                   // holds one

	mu      sync.Mutex
	list    []*Removed // oldest first; one that a later one took the place of has no path
	paths   map[string]*Removed
	bytes   int64
	lost    int  // that there was no room for
	pending bool // they are many, and nobody has taken them yet
}

// MassRemoval gets a value when many files were removed or overwritten that were changed since the last checkpoint. Before
// the first call nothing is kept of any.
func (t *Tree) MassRemoval() <-chan struct{} {
	t.removed.on.Store(true)
	return t.removed.mass
}

// MassRemoved says whether files were removed or overwritten in a mass, and nobody has taken them yet.
func (t *Tree) MassRemoved() bool {
	r := &t.removed
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending
}

// TakeRemoved returns the files that were removed or overwritten, and how many more there was no room for. Of a file that
// was overwritten several times within a second it is what was there first, of one that was removed then what was there last. Their contents can be read until release is called.
func (t *Tree) TakeRemoved() (list []*Removed, lost int, release func()) {
	r := &t.removed
	r.mu.Lock()
	defer r.mu.Unlock()
	list, lost = r.list, r.lost
	r.list, r.paths, r.bytes, r.lost, r.pending = nil, nil, 0, 0, false
	return list, lost, func() { releaseRemoved(list) }
}

// Saved says that a checkpoint has what there was at a moment of a freeze, without these directories.
func (t *Tree) Saved(f *Frozen, ignored map[string]bool) {
	if f.at == 0 {
		return
	}
	r := &t.removed
	r.since.Store(f.at)
	r.ignored.Store(&ignored)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.pending {
		r.expire(time.Unix(0, f.at))
	}
}

// expire forgets what was removed before a time. r.mu is held.
func (r *removals) expire(before time.Time) {
	n := 0
	for n < len(r.list) && r.list[n].at.Before(before) {
		if k := r.list[n]; k.Path != "" {
			delete(r.paths, k.Path)
			r.bytes -= k.Size
		}
		n++
	}
	releaseRemoved(r.list[:n])
	r.list = append([]*Removed(nil), r.list[n:]...)
}

func releaseRemoved(list []*Removed) {
	for _, k := range list {
		if k.pin != nil {
			k.pin.Release()
		}
	}
}

// lose keeps what a file holds that is about to lose a name, or its content.
func (m merged) lose(in *overlay.Inode, dir Node, name string, unlinked bool) {
	r := &m.tree.removed
	if !r.on.Load() || in.Nlink > 1 || in.Size == overlay.SizeOfBase || in.Size == 0 || !unsaved(in, r.since.Load()) {
		return
	}
	k := &Removed{at: time.Now(), unlinked: unlinked}
	k.Size = in.Size
	switch in.Mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		if in.Content == 0 {
			return
		}
		k.Kind, k.Mode = FrozenContent, object.ModeFile
		if in.Mode&0o100 != 0 {
			k.Mode = object.ModeExec
		}
	case syscall.S_IFLNK:
		target, _ := m.Target(in.Node)
		k.Kind, k.Mode, k.Target = FrozenLink, object.ModeSymlink, strings.Clone(target)
	default:
		return
	}
	at, ok := m.path(dir)
	if !ok || r.leftOut(at) {
		return
	}
	k.Path = joined(at, strings.Clone(name))
	r.add(m.tree, k, in)
}

// leftOut says whether checkpoints hold nothing of a directory.
func (r *removals) leftOut(dir string) bool {
	ignored := r.ignored.Load()
	if ignored == nil || len(*ignored) == 0 {
		return false
	}
	for dir != "" {
		if (*ignored)[dir] {
			return true
		}
		dir = parentOf(dir)
	}
	return false
}

func (r *removals) add(t *Tree, k *Removed, in *overlay.Inode) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.pending && len(r.list) > 0 && r.list[0].at.Before(k.at.Add(-keepRemoved)) {
		r.expire(k.at.Add(-keepRemoved))
	}
	before := r.paths[k.Path]
	if before != nil && before.at.After(k.at.Add(-massTime)) && (before.unlinked || !k.unlinked) {
		return
	}
	if before != nil {
		releaseRemoved([]*Removed{before})
		r.bytes -= before.Size
		delete(r.paths, before.Path)
		before.Path, before.pin = "", nil
	}
	switch {
	case len(r.list) >= maxRemoved, k.Size > maxRemovedOne, r.bytes+k.Size > maxRemovedAll:
		r.lost++
		return
	}
	if k.Kind == FrozenContent {
		k.pin = t.layer.Pin(*in)
		k.Content = k.pin
	}
	if r.paths == nil {
		r.paths = map[string]*Removed{}
	}
	r.paths[k.Path] = k
	r.bytes += k.Size
	r.list = append(r.list, k)
	if n := len(r.list) - 1 - massRemoved; n >= 0 && r.list[n].at.After(k.at.Add(-massTime)) {
		r.signal()
	}
}

// loseDir is for a directory that is removed: what was in it is gone with it.
func (m merged) loseDir(dir Node, name string) {
	r := &m.tree.removed
	if !r.on.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.list) == 0 || r.pending {
		return
	}
	at, ok := m.path(dir)
	if !ok {
		return
	}
	for _, k := range r.list {
		if strings.HasPrefix(k.Path, joined(at, name)+"/") {
			r.signal()
			return
		}
	}
}

// signal asks for a checkpoint. r.mu is held.
func (r *removals) signal() {
	if r.pending {
		return
	}
	r.pending = true
	select {
	case r.mass <- struct{}{}:
	default:
	}
}

// loseContent is lose for a file that is cut to nothing.
func (t *Tree) loseContent(n Node) {
	if !t.removed.on.Load() {
		return
	}
	t.view(func(m merged) {
		in, ok := m.inode(n)
		if !ok || in.Parent == 0 || in.Content == 0 || in.Size == 0 || !unsaved(&in, t.removed.since.Load()) {
			return
		}
		if r, ok := t.table.record(n); ok && Node(r.parent) == in.Parent {
			m.lose(&in, in.Parent, t.table.name(r), false)
			return
		}
		if present, _ := m.Entries(in.Parent); present > maxSearched {
			return
		}
		m.ReadDir(in.Parent, 0, func(_ uint64, name string, is Node, _ overlay.Presence) bool {
			if is == n {
				m.lose(&in, in.Parent, name, false)
			}
			return is != n
		})
	})
}

// coarseNow is the time by the clock that changes of the tree are dated with.
func coarseNow() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts) != nil {
		return time.Now().UnixNano()
	}
	return ts.Nano()
}

// unsaved says whether a file may have changed since a time.
func unsaved(in *overlay.Inode, since int64) bool {
	return overlay.Dirty(*in) || in.Ctime >= since || in.Mtime >= since
}
