// Package removed keeps the contents of files that were removed or overwritten before a checkpoint has stored them.
//
// A checkpoint is created when nothing was written for a while. A file that was written and removed shortly before is
// missing in the checkpoint. Therefore a Set keeps the contents of files that lose their last name, are replaced by a
// rename, or are overwritten, if they were changed since the last checkpoint (Saved). The contents of a removed file
// stay in their contents file of the overlay; the contents of an overwritten file are copied first (overwritten.go). If
// many files are removed or overwritten at once, the Set requests a checkpoint through the channel that Mass returns,
// and Take returns the kept files for the checkpoint. Each kept file is recorded in the overlay's log, in the same
// record as the removal: if the process is killed before the checkpoint is complete, its successor creates the
// checkpoint (Open).
//
// The mutex of a Set is acquired within updates of the overlay. While the Set holds this mutex, it pins contents and
// releases pins, which acquires the locks of overlay.Pin, but it does not update the overlay.
package removed

import (
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/signal"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

const (
	// If more than massFiles files are removed within massTime, the Set requests a checkpoint. If a directory with kept
	// files is removed, the Set requests a checkpoint at once.
	massFiles = 5
	massTime  = time.Second      // period to which massFiles applies
	keepTime  = 10 * time.Second // how long removed files are kept if they are too few for a request
	maxFiles  = 40_000           // maximum number of files that are kept for the next checkpoint
	// maximum size of a kept file, in bytes; checkpoints also leave out new files that are larger
	maxFileSize = 50 << 20
	maxAllSize  = 256 << 20 // maximum total size of the kept files on disk, in bytes
)

// File is a file or symbolic link that was removed or overwritten, and whose contents are kept.
type File struct {
	Path    string      // path relative to the root of the mount
	Mode    object.Mode // object.ModeFile, object.ModeExec or object.ModeSymlink
	Size    int64       // in bytes
	Target  string      // target of a symbolic link
	Content io.ReaderAt // contents of a regular file; nil for a symbolic link

	id       uint64       // number of the entry in the overlay's log; it increases from entry to entry
	at       time.Time    // time of the removal
	unlinked bool         // true if the name of the file was removed; false if the file was overwritten or replaced
	pin      *overlay.Pin // keeps the contents readable; nil for a symbolic link
}

// Lost reports whether the contents can no longer be read, because the disk was full or has failed.
func (k *File) Lost() bool { return k.pin != nil && k.pin.Lost() != nil }

// Set contains the files that a working tree keeps after they were removed or overwritten. Package worktree adds a file
// within the update of the overlay that removes or overwrites the file. Package session/capture takes the files for a
// checkpoint. mu protects the fields below mu; the other fields are atomic or do not change. The methods may be called
// from any goroutine.
type Set struct {
	layer *overlay.Layer // nil if the mount has no overlay, so that nothing is kept
	on    bool           // false if no files are kept
	find  Find
	log   *zap.Logger
	mass  chan struct{} // requests a checkpoint (see Mass); capacity 1

	since   atomic.Int64                    // moment of the last checkpoint in nanoseconds since 1970
	ignored atomic.Pointer[map[string]bool] // directories that checkpoints leave out

	mu      sync.Mutex
	list    []*File          // by id, the oldest first
	paths   map[string]*File // latest kept file of each path
	bytes   int64            // total size of the files in list, in bytes
	lost    int              // number of files that could not be kept, because the limits were reached
	last    uint64           // highest id of an entry
	pending bool             // true if a checkpoint was requested, and Take was not called since then
}

// Options configure Open.
type Options struct {
	Keep bool               // if false, no contents are kept, and Wants always returns false
	Kept []overlay.KeptFile // files that an earlier process has kept, from overlay.Recovery
	Find Find
	Log  *zap.Logger // receives a message if kept files cannot be removed from the overlay's log
}

// Open returns a Set with the files that an earlier process has kept. It requests a checkpoint for these files, because
// it is not known whether that process had requested a checkpoint. layer may be nil.
func Open(layer *overlay.Layer, o Options) *Set {
	s := &Set{layer: layer, on: o.Keep, find: o.Find, log: o.Log, mass: make(chan struct{}, 1), paths: map[string]*File{}}
	for _, f := range o.Kept {
		k := &File{Path: f.Path, Size: f.Size, Target: f.Target, id: f.ID, at: time.Unix(0, f.At), unlinked: f.Unlinked}
		k.Mode, _ = modeOf(f.Mode)
		if f.Pin != nil {
			k.Content, k.pin = f.Pin, f.Pin
		}
		s.list, s.paths[k.Path] = append(s.list, k), k
		s.bytes, s.last = s.bytes+k.Size, k.id
	}
	if len(s.list) > 0 {
		s.signal()
	}
	return s
}

// Close releases all kept files, unless a checkpoint was requested for them and was not created yet. It must be called
// before the overlay is closed.
func (s *Set) Close() {
	s.mu.Lock()
	var list []*File
	if !s.pending {
		list, s.list, s.bytes = s.list, nil, 0
		clear(s.paths)
	}
	s.mu.Unlock()
	s.unkeep(list)
}

// Mass returns a channel that receives a value when many files were removed or overwritten that had been changed since
// the last checkpoint. If Options.Keep is false, the channel never receives a value.
func (s *Set) Mass() <-chan struct{} { return s.mass }

// Requested returns ok as true if a checkpoint was requested for removed or overwritten files and was not created yet.
// latest is the time of the last removal. full is true if the kept files have reached half of their maximum number or
// size, or if a file could not be kept because the limits were reached.
func (s *Set) Requested() (latest time.Time, full, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.list); n > 0 {
		latest = s.list[n-1].at
	}
	return latest, len(s.list) > maxFiles/2 || s.bytes > maxAllSize/2 || s.lost > 0, s.pending
}

// Take returns the kept files, and the number of files that could not be kept. If a file was overwritten several times
// within massTime, the list contains the contents before the first of these writes. If the file was removed afterwards,
// the list contains the contents at the removal. The contents can be read until the caller calls done. The caller
// passes true for saved if a checkpoint contains the files; in this case done releases the files. Otherwise the next
// call of Take returns the files again.
func (s *Set) Take() (list []*File, lost int, done func(saved bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list, lost = s.list, s.lost
	bytes := s.bytes
	s.list, s.bytes, s.lost, s.pending = nil, 0, 0, false
	clear(s.paths)
	return list, lost, func(saved bool) {
		if saved {
			s.unkeep(list)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.list, s.bytes, s.lost = append(list, s.list...), s.bytes+bytes, s.lost+lost
		for _, k := range list {
			if s.paths[k.Path] == nil {
				s.paths[k.Path] = k
			}
		}
		s.signal()
	}
}

// unkeep removes kept files from the overlay's log and releases their contents. These files must be the oldest kept
// files in the log. The caller must not hold s.mu.
func (s *Set) unkeep(list []*File) {
	if len(list) == 0 {
		return
	}
	err := s.layer.Update(func(tx *overlay.Tx) error { tx.Unkeep(list[0].id, list[len(list)-1].id); return nil })
	if err != nil { // the only effect of the error is that the next Open requests one more checkpoint
		s.log.Warn("a checkpoint has removed files, and the overlay keeps them", zap.Error(err))
	}
	release(list)
}

// Saved records that a checkpoint contains the working tree as it was at moment, in nanoseconds since 1970, without the
// ignored directories. Files that were removed before moment are released, unless a checkpoint was requested for them.
func (s *Set) Saved(moment int64, ignored map[string]bool) {
	s.since.Store(moment)
	s.ignored.Store(&ignored)
	s.mu.Lock()
	var old []*File
	if !s.pending {
		old = s.expire(time.Unix(0, moment))
	}
	s.mu.Unlock()
	s.unkeep(old)
}

// Wants reports whether the contents of a file must be kept when it is removed or overwritten. This is the case for a
// regular file or symbolic link that is not empty, that does not have the contents of the base tree, and that was
// changed since the last checkpoint. A fork has carried files because checkpoints leave them out.
func (s *Set) Wants(in *overlay.Inode) bool {
	if !s.on || in.Size == overlay.SizeOfBase || in.Size == 0 || overlay.Carried(*in) {
		return false
	}
	if since := s.since.Load(); !overlay.Dirty(*in) && in.Ctime < since && in.Mtime < since {
		return false
	}
	mode, ok := modeOf(in.Mode)
	return ok && (mode == object.ModeSymlink || in.Content != 0)
}

// LeavesOut reports whether checkpoints leave out the directory dir or a directory above dir.
func (s *Set) LeavesOut(dir string) bool {
	ignored := s.ignored.Load()
	if ignored == nil || len(*ignored) == 0 {
		return false
	}
	for dir != "" {
		if (*ignored)[dir] {
			return true
		}
		dir = dir[:max(0, strings.LastIndexByte(dir, '/'))]
	}
	return false
}

// Remove keeps the contents of a file that is removed by the update tx, as part of that update. Wants must have
// returned true for the inode. target is the target of a symbolic link. unlinked is true if the name of the file is
// removed, and false if another file gets the name. Remove returns nil if the file is not kept.
func (s *Set) Remove(tx *overlay.Tx, in *overlay.Inode, path, target string, unlinked bool) *File {
	k := &File{Path: path, Size: in.Size, Target: target, at: time.Now(), unlinked: unlinked}
	k.Mode, _ = modeOf(in.Mode)
	if !s.add(tx, k, in, false) {
		return nil
	}
	return k
}

// Undo removes the entry k, because the update that contained it has failed. k may be nil.
func (s *Set) Undo(k *File) {
	if k == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.remove(k) {
		release([]*File{k})
	}
}

// Waits reports whether the Set keeps files for which no checkpoint was requested yet. If Waits returns false, a call
// of RemoveDir has no effect.
func (s *Set) Waits() bool {
	if !s.on {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.list) > 0 && !s.pending
}

// RemoveDir requests a checkpoint if the Set keeps files that were below the directory dir, which is being removed.
func (s *Set) RemoveDir(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.list {
		if rest, ok := strings.CutPrefix(k.Path, dir); ok && strings.HasPrefix(rest, "/") {
			s.signal()
			return
		}
	}
}

// add keeps a file that is removed or overwritten by the update tx, as part of that update. copied is true if
// in.Content is a copy that was made for this purpose. add returns false if the file is not kept.
func (s *Set) add(tx *overlay.Tx, k *File, in *overlay.Inode, copied bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.pending && len(s.list) > 0 && s.list[0].at.Before(k.at.Add(-keepTime)) {
		if old := s.expire(k.at.Add(-keepTime)); len(old) > 0 {
			tx.Unkeep(old[0].id, old[len(old)-1].id)
			release(old)
		}
	}
	if s.settled(k) {
		return false
	}
	if before := s.paths[k.Path]; before != nil && s.remove(before) {
		tx.Unkeep(before.id, before.id)
		release([]*File{before})
	}
	if len(k.Path) > overlay.MaxKeptPath || len(s.list) >= maxFiles || k.Size > maxFileSize ||
		s.bytes+k.Size > maxAllSize {
		s.lost++
		return false
	}
	s.last++
	k.id = s.last
	kept := overlay.Kept{ID: k.id, Size: k.Size, Mode: in.Mode, At: k.at.UnixNano(), Unlinked: k.unlinked,
		Copied: copied, Path: k.Path, Target: k.Target}
	if k.Mode != object.ModeSymlink {
		kept.Content = in.Content
		k.pin = s.layer.PinKept(overlay.Inode{Content: in.Content, Size: k.Size}, k.id)
		k.Content = k.pin
	}
	tx.Keep(kept)
	s.paths[k.Path] = k
	s.bytes += k.Size
	s.list = append(s.list, k)
	if n := len(s.list) - 1 - massFiles; n >= 0 && s.list[n].at.After(k.at.Add(-massTime)) {
		s.signal()
	}
	return true
}

// settled reports whether the file k need not be kept, because the Set has kept an entry for the same path less than
// massTime ago. The caller holds s.mu.
func (s *Set) settled(k *File) bool {
	before := s.paths[k.Path]
	return before != nil && before.at.After(k.at.Add(-massTime)) && (before.unlinked || !k.unlinked)
}

// expire removes from the list the files that were removed before the time in the parameter before, and returns these
// files. The caller must remove the files from the overlay's log. The caller holds s.mu.
func (s *Set) expire(before time.Time) (old []*File) {
	n := 0
	for n < len(s.list) && s.list[n].at.Before(before) {
		k := s.list[n]
		if s.paths[k.Path] == k {
			delete(s.paths, k.Path)
		}
		s.bytes -= k.Size
		n++
	}
	old, s.list = s.list[:n:n], slices.Clone(s.list[n:])
	return old
}

// remove removes the file k from the list. It returns false if the list does not contain k. The caller holds s.mu.
func (s *Set) remove(k *File) bool {
	i, ok := slices.BinarySearchFunc(s.list, k.id, func(k *File, id uint64) int {
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
	s.list = slices.Delete(s.list, i, i+1)
	if s.paths[k.Path] == k {
		delete(s.paths, k.Path)
	}
	s.bytes -= k.Size
	return true
}

// signal requests a checkpoint, unless a checkpoint was requested already. The caller holds s.mu.
func (s *Set) signal() {
	if s.pending {
		return
	}
	s.pending = true
	signal.Send(s.mass)
}

// release releases the pins of the files.
func release(list []*File) {
	for _, k := range list {
		if k.pin != nil {
			k.pin.Release()
		}
	}
}

// modeOf returns the git mode of a file, given its st_mode. ok is false if the file is neither a regular file nor a
// symbolic link.
func modeOf(mode uint32) (m object.Mode, ok bool) {
	switch mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		if mode&0o100 != 0 {
			return object.ModeExec, true
		}
		return object.ModeFile, true
	case syscall.S_IFLNK:
		return object.ModeSymlink, true
	}
	return 0, false
}
