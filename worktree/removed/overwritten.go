package removed

import (
	"time"

	"github.com/artifactfs/artifactfs/overlay"
)

// Contents that no checkpoint contains are copied before they are overwritten. The cost of that grows with their length, so a
// file that is changed in place is copied only if it is small, and at most once per massTime. A file that is truncated to
// nothing is not copied: it gets a new contents file, and the old one is kept.

// maxCopied is the maximum size of a file that is copied before it is changed in place, in bytes.
const maxCopied = 1 << 20

// Find returns the inode of a file as it is now and the paths under which its contents are to be kept. It returns no paths if
// Wants is false for the inode, and leaves out the paths in directories that checkpoints leave out. short reports that the
// search for names was cut short, so that a file is lost.
type Find func(n overlay.Node) (in overlay.Inode, paths []string, short bool)

// BeforeWrite keeps the contents of n before p is written at the offset off, if that overwrites bytes.
func (s *Set) BeforeWrite(n overlay.Node, f *overlay.File, p []byte, off int64) {
	if !s.on || f.CopiedWithin(massTime) {
		return
	}
	if size, err := f.Size(); err != nil || off >= size || size > maxCopied || !f.Overwrites(p, off) {
		return
	}
	s.BeforeChange(n, f)
}

// BeforeChange keeps a copy of the contents of a small file, before a part of them is overwritten or cut off.
func (s *Set) BeforeChange(n overlay.Node, f *overlay.File) {
	s.overwrite(n, true, func(keep keeper) error { return f.KeepCopy(massTime, maxCopied, keep) })
}

// BeforeEmpty keeps the contents of a file that is about to be truncated to nothing.
func (s *Set) BeforeEmpty(n overlay.Node, f *overlay.File) {
	s.overwrite(n, false, func(keep keeper) error { return f.SetAside(maxFileSize, keep) })
}

// keeper adds contents, identified by their number in the overlay and their size in bytes, to the kept files, as part of an
// update. It returns false if they are not to be kept.
type keeper = func(tx *overlay.Tx, number uint64, size int64) bool

// overwrite keeps the contents of a file under each of its names. by calls the keeper in an update of the overlay; copied
// states whether by makes a copy of the contents. If by returns an error, the contents count as lost, and the write is made
// all the same.
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
	if err != nil { // the write itself continues
		for _, k := range kept {
			s.Undo(k)
		}
		s.countLost()
	}
}

// countLost counts a file whose contents are not kept.
func (s *Set) countLost() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost++
}
