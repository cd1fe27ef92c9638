package removed

import (
	"time"

	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// Contents that no checkpoint contains are copied before they are overwritten. The cost of a copy grows with the
// length, so a file that is changed in place is not copied if it is large, and is copied at most once within massTime.
// A file that is truncated to length 0 is not copied, because the overlay creates a new contents file for it, and the
// old contents file is kept.

// maxCopied is the maximum size, in bytes, of a file that is copied before it is changed in place.
const maxCopied = 1 << 20

// Find returns the present inode of a file, and the paths for which the file's contents must be kept. It returns no
// paths if Set.Wants returns false for the inode. It leaves out paths in directories that checkpoints leave out. short
// is true if the search did not cover all names of the file, so that the file counts as lost.
type Find func(n overlay.Node) (in overlay.Inode, paths []string, short bool)

// BeforeWrite keeps the contents of file n before p is written at the offset off. It does nothing if the write appends
// to the file, or if the file is larger than maxCopied.
func (s *Set) BeforeWrite(n overlay.Node, f *overlay.File, p []byte, off int64) {
	if !s.on || f.CopiedWithin(massTime) {
		return
	}
	if size, err := f.Size(); err != nil || off >= size || size > maxCopied || !f.Overwrites(p, off) {
		return
	}
	s.BeforeChange(n, f)
}

// BeforeChange keeps a copy of the contents of file n, if the file is small, before a part of them is overwritten or
// removed.
func (s *Set) BeforeChange(n overlay.Node, f *overlay.File) {
	s.overwrite(n, true, func(keep keeper) error { return f.KeepCopy(massTime, maxCopied, keep) })
}

// BeforeEmpty keeps the contents of file n, which is about to be truncated to length 0.
func (s *Set) BeforeEmpty(n overlay.Node, f *overlay.File) {
	s.overwrite(n, false, func(keep keeper) error { return f.SetAside(maxFileSize, keep) })
}

// keeper adds contents to the kept files, as part of an update of the overlay. number identifies the contents in the
// overlay, and size is their length in bytes. keeper returns false if the contents need not be kept.
type keeper = func(tx *overlay.Tx, number uint64, size int64) bool

// overwrite keeps the contents of file n under each of its names. The function by must pass its argument, the keeper,
// to an update of the overlay. copied is true if by makes a copy of the contents. If by returns an error, the contents
// count as lost, and the caller still makes the write.
func (s *Set) overwrite(n overlay.Node, copied bool, by func(keeper) error) {
	if !s.on {
		return
	}
	at := time.Now()
	in, paths, short := s.find(n)
	if short {
		s.countLost()
	}
	if len(paths) == 0 {
		return
	}
	var kept []*File
	err := by(func(tx *overlay.Tx, number uint64, size int64) bool {
		in.Content = number
		for _, path := range paths {
			k := &File{Path: path, Size: size, at: at}
			var ok bool
			if k.Mode, ok = modeOf(in.Mode); ok && s.add(tx, k, &in, copied) {
				kept = append(kept, k)
			}
		}
		return len(kept) > 0
	})
	if err != nil { // the error is only logged, because the caller must make the write anyway
		for _, k := range kept {
			s.Undo(k)
		}
		s.countLost()
	}
}

// countLost counts a file whose contents could not be kept.
func (s *Set) countLost() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost++
}
