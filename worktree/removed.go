package worktree

import (
	"slices"
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
// therefore keeps what files hold that lose their last name, are replaced by a rename or are overwritten, if they were
// changed since the last checkpoint (Saved). The content of a removed file stays where it is, one that is overwritten is
// copied before (overwritten.go). When many are lost at once, MassRemoval asks for a checkpoint, and TakeRemoved returns
// what was there. What is kept is in the overlay's log, in the record of the removal itself: a process that is killed before
// the checkpoint stands leaves it to its successor, which makes the checkpoint (recover).
const (
	massRemoved   = 5                // more paths than this within massTime, or any in a directory that is removed, are a mass
	massTime      = time.Second      //
	keepRemoved   = 10 * time.Second // longest time that a few removed files wait for a checkpoint
	maxRemoved    = 40_000           // files that are kept
	maxRemovedOne = 50 << 20         // bytes of one of them; larger new files are in no checkpoint either
	maxRemovedAll = 256 << 20        // bytes of all of them, on disk
)

// Removed is a file that was removed or overwritten.
type Removed struct {
	FrozenEntry // FrozenContent or FrozenLink
	id          uint64
	at          time.Time
	unlinked    bool         // else it was overwritten
	pin         *overlay.Pin // nil of a link
}

// Lost says that the content could not be kept until now, because the disk is full or failing.
func (k *Removed) Lost() bool { return k.pin != nil && k.pin.Lost() != nil }

// removals is what the Tree keeps of files that are gone.
type removals struct {
	on      atomic.Bool                     // checkpoints are made
	since   atomic.Int64                    // what was changed before is in one: nanoseconds since 1970
	ignored atomic.Pointer[map[string]bool] // directories that checkpoints leave out
	mass    chan struct{}                   // holds one

	mu      sync.Mutex // a leaf
	list    []*Removed // by id, oldest first
	paths   map[string]*Removed
	bytes   int64
	lost    int    // that there was no room for
	last    uint64 // id
	pending bool   // they are many, and no checkpoint has them yet
	names   dirNames
}

// MassRemoval gets a value when many files were removed or overwritten that were changed since the last checkpoint
// (Options.KeepRemoved).
func (t *Tree) MassRemoval() <-chan struct{} { return t.removed.mass }

// MassRemoved returns whether files were removed or overwritten in a mass and no checkpoint has them yet, when the latest
// was, and whether so many are kept that there is little room for more.
func (t *Tree) MassRemoved() (latest time.Time, full, ok bool) {
	r := &t.removed
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.list); n > 0 {
		latest = r.list[n-1].at
	}
	return latest, len(r.list) > maxRemoved/2 || r.bytes > maxRemovedAll/2 || r.lost > 0, r.pending
}

// TakeRemoved returns the files that were removed or overwritten, and how many more there was no room for. Of a file that
// was overwritten several times within a second it is what was there first, of one that was removed then what was there
// last. Their contents can be read until done is called; unless a checkpoint has them then, they are kept for the next call.
func (t *Tree) TakeRemoved() (list []*Removed, lost int, done func(saved bool)) {
	r := &t.removed
	r.mu.Lock()
	defer r.mu.Unlock()
	list, lost = r.list, r.lost
	bytes := r.bytes
	r.list, r.paths, r.bytes, r.lost, r.pending = nil, nil, 0, 0, false
	return list, lost, func(saved bool) {
		if saved {
			t.unkeep(list)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.list, r.bytes, r.lost = append(list, r.list...), r.bytes+bytes, r.lost+lost
		if r.paths == nil {
			r.paths = map[string]*Removed{}
		}
		for _, k := range list {
			if r.paths[k.Path] == nil {
				r.paths[k.Path] = k
			}
		}
		r.signal()
	}
}

// unkeep removes the oldest of what was kept from the record and lets their contents go. r.mu is not held.
func (t *Tree) unkeep(list []*Removed) {
	if len(list) == 0 {
		return
	}
	err := t.layer.Update(func(tx *overlay.Tx) error { tx.Unkeep(list[0].id, list[len(list)-1].id); return nil })
	if err != nil {
		t.logUnkept(err) // the next start makes a checkpoint once more
	}
	releaseRemoved(list)
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
	var old []*Removed
	if !r.pending {
		old = r.expire(time.Unix(0, f.at))
	}
	r.mu.Unlock()
	t.unkeep(old)
}

// recover takes over what another process kept. Nobody knows whether it had asked for a checkpoint: one is made.
func (t *Tree) recover(kept []overlay.KeptFile) {
	if len(kept) == 0 {
		return
	}
	r := &t.removed
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paths = map[string]*Removed{}
	for _, f := range kept {
		k := &Removed{id: f.ID, at: time.Unix(0, f.At), unlinked: f.Unlinked}
		k.Path, k.Size, k.Target = f.Path, f.Size, f.Target
		k.kind(f.Mode)
		if f.Pin != nil {
			k.Content, k.pin = f.Pin, f.Pin
		}
		r.list, r.paths[k.Path] = append(r.list, k), k
		r.bytes, r.last = r.bytes+k.Size, k.id
	}
	r.signal()
}

// forget removes what is kept, unless it waits for a checkpoint: who closes the Tree has made one.
func (r *removals) forget(t *Tree) {
	r.mu.Lock()
	var list []*Removed
	if !r.pending {
		list, r.list, r.paths, r.bytes = r.list, nil, nil, 0
	}
	r.mu.Unlock()
	t.unkeep(list)
}

// expire forgets what was removed before a time, and returns it. r.mu is held.
func (r *removals) expire(before time.Time) (old []*Removed) {
	n := 0
	for n < len(r.list) && r.list[n].at.Before(before) {
		k := r.list[n]
		if r.paths[k.Path] == k {
			delete(r.paths, k.Path)
		}
		r.bytes -= k.Size
		n++
	}
	old, r.list = r.list[:n:n], slices.Clone(r.list[n:])
	return old
}

// remove forgets one. r.mu is held.
func (r *removals) remove(k *Removed) bool {
	i, ok := slices.BinarySearchFunc(r.list, k.id, func(k *Removed, id uint64) int {
		switch {
		case k.id < id:
			return -1
		case k.id > id:
			return 1
		}
		return 0
	})
	if !ok {
		return false
	}
	r.list = slices.Delete(r.list, i, i+1)
	if r.paths[k.Path] == k {
		delete(r.paths, k.Path)
	}
	r.bytes -= k.Size
	return true
}

func releaseRemoved(list []*Removed) {
	for _, k := range list {
		if k.pin != nil {
			k.pin.Release()
		}
	}
}

// kind sets what it is by st_mode.
func (k *Removed) kind(mode uint32) bool {
	switch mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		k.Kind, k.Mode = FrozenContent, object.ModeFile
		if mode&0o100 != 0 {
			k.Mode = object.ModeExec
		}
	case syscall.S_IFLNK:
		k.Kind, k.Mode = FrozenLink, object.ModeSymlink
	default:
		return false
	}
	return true
}

// lose keeps what a file holds that is about to lose a name.
func (e *edit) lose(in *overlay.Inode, dir Node, name string, unlinked bool) {
	r := &e.tree.removed
	if !r.on.Load() || in.Size == overlay.SizeOfBase || in.Size == 0 || !unsaved(in, r.since.Load()) {
		return
	}
	k := &Removed{at: time.Now(), unlinked: unlinked}
	if !k.kind(in.Mode) || k.Kind == FrozenContent && in.Content == 0 {
		return
	}
	k.Size = in.Size
	if k.Kind == FrozenLink {
		target, _ := e.Target(in.Node)
		k.Target = strings.Clone(target)
	}
	at, ok := e.path(dir)
	if !ok || r.leftOut(at) {
		return
	}
	k.Path = joined(at, strings.Clone(name))
	if r.add(e.tree, e.tx, k, in, false) {
		e.kept = k
	}
}

// leftOut reports whether checkpoints hold nothing of a directory.
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

// settled says that what was kept of a path a moment ago counts, and not what k would keep. r.mu is held.
func (r *removals) settled(k *Removed) bool {
	before := r.paths[k.Path]
	return before != nil && before.at.After(k.at.Add(-massTime)) && (before.unlinked || !k.unlinked)
}

// add keeps what an update removes or overwrites, within that update.
func (r *removals) add(t *Tree, tx *overlay.Tx, k *Removed, in *overlay.Inode, copied bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.pending && len(r.list) > 0 && r.list[0].at.Before(k.at.Add(-keepRemoved)) {
		if old := r.expire(k.at.Add(-keepRemoved)); len(old) > 0 {
			tx.Unkeep(old[0].id, old[len(old)-1].id)
			releaseRemoved(old)
		}
	}
	if r.settled(k) {
		return false
	}
	if before := r.paths[k.Path]; before != nil && r.remove(before) {
		tx.Unkeep(before.id, before.id)
		releaseRemoved([]*Removed{before})
	}
	if len(k.Path) > overlay.MaxKeptPath || len(r.list) >= maxRemoved || k.Size > maxRemovedOne || r.bytes+k.Size > maxRemovedAll {
		r.lost++
		return false
	}
	r.last++
	k.id = r.last
	kept := overlay.Kept{ID: k.id, Size: k.Size, Mode: in.Mode, At: k.at.UnixNano(), Unlinked: k.unlinked, Copied: copied, Path: k.Path, Target: k.Target}
	if k.Kind == FrozenContent {
		kept.Content = in.Content
		k.pin = t.layer.PinKept(overlay.Inode{Content: in.Content, Size: k.Size}, k.id)
		k.Content = k.pin
	}
	tx.Keep(kept)
	if r.paths == nil {
		r.paths = map[string]*Removed{}
	}
	r.paths[k.Path] = k
	r.bytes += k.Size
	r.list = append(r.list, k)
	if n := len(r.list) - 1 - massRemoved; n >= 0 && r.list[n].at.After(k.at.Add(-massTime)) {
		r.signal()
	}
	return true
}

// undo forgets what was kept for an update that failed.
func (r *removals) undo(k *Removed) {
	if k == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.remove(k) {
		releaseRemoved([]*Removed{k})
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

// coarseNow is the time by the clock that changes of the tree are dated with.
func coarseNow() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts) != nil {
		return time.Now().UnixNano()
	}
	return ts.Nano()
}

// unsaved reports whether a file may have changed since a time.
func unsaved(in *overlay.Inode, since int64) bool {
	return overlay.Dirty(*in) || in.Ctime >= since || in.Mtime >= since
}
