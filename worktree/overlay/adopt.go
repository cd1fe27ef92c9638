package overlay

import (
	"fmt"
	"syscall"

	"github.com/artifactfs/artifactfs/worktree/overlay/state"
)

// A new overlay can use the sealed contents of another one. It is opened with the segments that Sealing.Segments has
// returned, and its nodes then use the contents files.

// useSegments makes a new overlay use the sealed contents files in Options.Segments.
func (s *opening) useSegments() error {
	segments := s.l.o.Segments
	if s.l.o.Shares == "" {
		return ErrShares
	}
	if err := writeList(s.l.o.FS, s.l.dir, sharesOf(segments)); err != nil {
		return err
	}
	return s.addSegments(segments)
}

// addSegments adds segments to a log that names no contents files yet.
func (s *opening) addSegments(segments []state.Segment) error {
	if err := s.l.wal.Raise(); err != nil {
		return err
	}
	return s.l.update(func(tx *Tx) error {
		for _, g := range segments {
			tx.batch.Seal(g)
			tx.batch.SetCounter(counterContents, g.Bound)
		}
		return nil
	})
}

// Adopt puts the inode of a new node, whose contents are those of a sealed contents file, or empty if in.Content is 0.
// Changed does not count the names of the node until it changes in more than its atime.
func (tx *Tx) Adopt(in Inode) error {
	if in.Content != 0 && !tx.l.contents.isSealed(in.Content) {
		return fmt.Errorf("adopt contents file %06x, which is not sealed: %w", in.Content, syscall.EINVAL)
	}
	in.Flags = state.FlagCarried
	tx.put(in)
	return nil
}
