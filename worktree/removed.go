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

// A checkpoint is made when no writes have been made for a while. It does not contain a file that was written and removed
// shortly before. The Tree therefore keeps the contents of files that lose their last name, are replaced by a rename or are
// overwritten, if they were changed since the last checkpoint (Saved). The contents of a removed file stay where they are,
// those of an overwritten file are copied first (overwritten.go). If many files are lost at once, MassRemoval requests a
// checkpoint, and TakeRemoved returns the kept files. Each kept file is stored in the overlay's log, in the same record as
// the removal: if the process is killed before the checkpoint is complete, its successor makes the checkpoint (recover).
const (
	massRemoved   = 5                // more removals within massTime, or any in a removed directory, request a checkpoint
	massTime      = time.Second      // see massRemoved
	keepRemoved   = 10 * time.Second // time for which a few removed files are kept without a request for a checkpoint
	maxRemoved    = 40_000           // maximum number of kept files
	maxRemovedOne = 50 << 20         // maximum size of a kept file, in bytes; checkpoints leave out larger new files as well
	maxRemovedAll = 256 << 20        // maximum total size of the kept files on disk, in bytes
)

// Removed is a kept file or symbolic link that was removed or overwritten.
type Removed struct {
	FrozenEntry              // of kind FrozenContent or FrozenLink
	id          uint64       // number of the entry in the overlay's log; ascending
	at          time.Time    // time of the removal
	unlinked    bool         // removed by name; false: overwritten or replaced
	pin         *overlay.Pin // keeps the contents readable; nil for a symbolic link
}

// Lost reports whether the contents could not be kept until now, because the disk is full or failing.
func (k *Removed) Lost() bool { return k.pin != nil && k.pin.Lost() != nil }

// removals is the set of files that the Tree keeps after their removal.
type removals struct {
	on      atomic.Bool                     // whether removed files are kept at all (Options.KeepRemoved)
	since   atomic.Int64                    // moment of the last checkpoint, in nanoseconds since 1970
	ignored atomic.Pointer[map[string]bool] // directories that checkpoints leave out
	mass    chan struct{}                   // see MassRemoval; capacity 1

	mu      sync.Mutex          // guards the fields below; taken under the overlay's locks
	list    []*Removed          // by id, the oldest first
	paths   map[string]*Removed // latest kept file of each path
	bytes   int64               // total size of list, in bytes
	lost    int                 // number of files that were not kept for lack of room
	last    uint64              // highest id
	pending bool                // a checkpoint was requested and TakeRemoved was not called since
	names   dirNames            // cache of nameIn
}

// MassRemoval returns a channel that receives a value when many files were removed or overwritten that had been changed
// since the last checkpoint. It requires Options.KeepRemoved.
func (t *Tree) MassRemoval() <-chan struct{} { return t.removed.mass }

// MassRemoved reports in ok whether a checkpoint is requested for removed or overwritten files and not made yet. latest is the
// time of the latest removal. full reports that the kept files have reached half of their maximum number or size, or that a
// file was lost for lack of room.
func (t *Tree) MassRemoved() (latest time.Time, full, ok bool) {
	r := &t.removed
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.list); n > 0 {
		latest = r.list[n-1].at
	}
	return latest, len(r.list) > maxRemoved/2 || r.bytes > maxRemovedAll/2 || r.lost > 0, r.pending
}

// TakeRemoved returns the kept files, and the number of files that were lost for lack of room. Of a file that was overwritten
// several times within massTime, the list contains the contents before the first of these writes; if the file was then
// removed, its contents at the removal. The contents can be read until the caller calls done. If saved is true, a checkpoint
// contains the files and done releases them; otherwise the next call of TakeRemoved returns them again.
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

// unkeep removes kept files from the overlay's log and releases their contents. They must be the oldest kept files in that
// log. The caller must not hold r.mu.
func (t *Tree) unkeep(list []*Removed) {
	if len(list) == 0 {
		return
	}
	err := t.layer.Update(func(tx *overlay.Tx) error { tx.Unkeep(list[0].id, list[len(list)-1].id); return nil })
	if err != nil {
		t.logUnkept(err) // harmless: the next Open makes one more checkpoint
	}
	releaseRemoved(list)
}

// Saved records that a checkpoint contains the working tree as of the moment of f, without the ignored directories. Files
// that were removed before that moment are no longer kept, unless a checkpoint for them is requested.
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

// recover continues to keep the files that a predecessor kept. It requests a checkpoint for them, because it is not known
// whether the predecessor had requested one.
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

// forget releases all kept files when the Tree is closed, unless a checkpoint was requested for them and was not made yet.
func (r *removals) forget(t *Tree) {
	r.mu.Lock()
	var list []*Removed
	if !r.pending {
		list, r.list, r.paths, r.bytes = r.list, nil, nil, 0
	}
	r.mu.Unlock()
	t.unkeep(list)
}

// expire drops from the list the files that were removed before a time, and returns them; the caller removes them from the
// log. The caller holds r.mu.
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

// remove drops one file from the list and reports whether it was listed. The caller holds r.mu.
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

// releaseRemoved releases the pins of the files.
func releaseRemoved(list []*Removed) {
	for _, k := range list {
		if k.pin != nil {
			k.pin.Release()
		}
	}
}

// kind sets Kind and Mode according to mode, which is an st_mode. It returns false for anything but a regular file or a
// symbolic link.
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

// lose keeps the contents of a file that is about to lose a name in dir. It does nothing if the file is empty, if its contents
// are those of the base tree, or if it was not changed since the last checkpoint.
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

// leftOut reports whether checkpoints leave out the directory, or one above it.
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

// settled reports whether an entry that was kept for the same path less than massTime ago is kept instead of k. The caller
// holds r.mu.
func (r *removals) settled(k *Removed) bool {
	before := r.paths[k.Path]
	return before != nil && before.at.After(k.at.Add(-massTime)) && (before.unlinked || !k.unlinked)
}

// add keeps a file that an update removes or overwrites, as part of that update. copied reports that in.Content is a copy
// made for this purpose. It returns false if the file is not kept.
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
	kept := overlay.Kept{ID: k.id, Size: k.Size, Mode: in.Mode, At: k.at.UnixNano(), Unlinked: k.unlinked,
		Copied: copied, Path: k.Path, Target: k.Target}
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

// undo drops the entry of an update that failed. k may be nil.
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

// loseDir requests a checkpoint if files below a directory that is being removed are kept.
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

// signal requests a checkpoint, unless one is requested already. The caller holds r.mu.
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

// coarseNow returns the time in nanoseconds since 1970 by the clock that the kernel uses for the times of files.
func coarseNow() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts) != nil {
		return time.Now().UnixNano()
	}
	return ts.Nano()
}

// unsaved reports whether a file may have changed since a time, in nanoseconds since 1970.
func unsaved(in *overlay.Inode, since int64) bool {
	return overlay.Dirty(*in) || in.Ctime >= since || in.Mtime >= since
}
