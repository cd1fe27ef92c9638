package overlay

import (
	"fmt"
	"path/filepath"

	"github.com/artifactfs/artifactfs/worktree/overlay/state"
)

// unfinished are the flags of an inode whose contents file may differ from the log after a kill.
const unfinished = state.FlagDirty | state.FlagUnsettled | state.FlagWritten

// recover makes the state, which was replayed from the log, agree with the contents files. It returns the set of
// contents files that have an owner; all other contents files may be orphans. A nil set means that no search for
// orphans is needed.
//
// After Close, recover has nothing to do. After a kill the log is complete, and the kernel has every byte that was
// written: only the sizes of dirty inodes are outdated. After power loss the log and the contents files may have
// reached the disk up to different points in time, so every contents file is checked. The contents files are also
// checked if the host went down after Close, because Close writes the sizes to the log but does not sync the contents.
func (s *opening) recover() (owned map[uint64]struct{}, err error) {
	owned = map[uint64]struct{}{}
	var doubtful []Inode
	s.l.state.EachInode(func(in Inode) bool {
		// forsaken means that the node has no name and no process has it open
		forsaken := in.Nlink == 0 && !(s.rec.TookOver && s.knows(in.Node))
		if forsaken && !s.l.o.ReadOnly {
			s.l.forsaken = append(s.l.forsaken, in.Node)
		}
		if s.rec.Start == Clean {
			return true
		}
		if in.Content != 0 {
			owned[in.Content] = struct{}{}
		}
		switch {
		case forsaken, in.Content == 0:
		case s.rec.Start == PowerLoss, s.rec.Start == Rebooted, in.Flags&unfinished != 0:
			doubtful = append(doubtful, in)
		}
		return true
	})
	if s.rec.Start == Clean {
		return nil, nil
	}
	// Dead contents files are not orphans: the log names them, and the janitor removes them.
	s.l.state.EachDead(func(number uint64) bool { owned[number] = struct{}{}; return true })
	if s.rec.TookOver {
		return owned, s.readDirtySizes(doubtful)
	}
	var lost []uint64
	for len(doubtful) > 0 {
		some := doubtful[:min(len(doubtful), slice)]
		if err := s.correct(some, &lost); err != nil {
			return nil, err
		}
		doubtful = doubtful[len(some):]
	}
	if s.l.o.ReadOnly {
		return nil, nil
	}
	if s.rec.Start == PowerLoss {
		if err := s.skipNumbers(); err != nil {
			return nil, err
		}
	}
	// The killed process may have created subdirectories. A later fsync promises that a file is found after a power cut,
	// so the names of these subdirectories must be on disk.
	if err := s.l.contents.syncDirs(); err != nil {
		return nil, err
	}
	// Write the log record first: if the files were moved before it, the log could still name a contents file that is
	// missing.
	for _, number := range lost {
		if err := s.l.contents.lose(number); err != nil {
			return nil, err
		}
		delete(owned, number)
	}
	return owned, nil
}

// correct corrects inodes whose contents files may differ from the records in the log. It appends to *lost the contents
// files that must be moved to lost+found.
//
// After power loss an unsettled contents file of a base node is not trusted: the node has the base tree's contents
// again, and the contents file is moved to lost+found. If the contents file of an own node is missing after the host
// went down, the file becomes empty, because a new file without an fsync need not survive. In all other cases a missing
// contents file is reported as a problem, and reading the file returns ErrDamaged.
func (s *opening) correct(inodes []Inode, lost *[]uint64) error {
	var corrected []put
	for _, old := range inodes {
		in := old
		info, ok, err := s.l.contents.stat(in.Content)
		if err != nil {
			return err
		}
		base := !in.Node.Own()
		switch {
		case s.rec.Start == PowerLoss && base && in.Flags&state.FlagUnsettled != 0:
			in.Content, in.Size, in.Flags = 0, SizeOfBase, 0
			if ok {
				*lost = append(*lost, old.Content)
			}
		case !ok && !base && (s.rec.Start == PowerLoss || s.rec.Start == Rebooted):
			in.Content, in.Size, in.Flags = 0, 0, 0
			s.rec.Problems = append(s.rec.Problems,
				fmt.Sprintf("file %d is empty, because its contents were not written to disk", in.Node))
		case !ok:
			s.rec.Problems = append(s.rec.Problems, fmt.Sprintf("file %d: contents file %06x is missing", in.Node, in.Content))
		default:
			in.Size = info.Size()
			if in.Flags&state.FlagDirty != 0 {
				in.Mtime = max(in.Mtime, info.ModTime().UnixNano())
			}
			if in.Flags&state.FlagWritten != 0 {
				in.Ctime = max(in.Ctime, in.Mtime)
			}
			in.Flags &^= state.FlagDirty | state.FlagWritten
			if in.Flags&state.FlagUnsettled != 0 {
				s.l.due[in.Node] = struct{}{}
			}
		}
		if in != old && s.rec.Start == Rebooted {
			s.rec.Shrunk = append(s.rec.Shrunk, in.Node)
		}
		if in != old {
			corrected = append(corrected, put{in: in, old: old, existed: true, logSize: true})
		}
	}
	if !s.l.o.ReadOnly {
		return s.l.update(func(tx *Tx) error { tx.puts = append(tx.puts, corrected...); return nil })
	}
	var b state.Batch
	for i := range corrected {
		b.PutInode(&corrected[i].in, &corrected[i].old)
	}
	return s.l.state.Apply(b.Bytes())
}

// skipNumbers raises the next contents file number above the numbers of all existing files, because power loss may have
// removed the record that reserved their numbers.
func (s *opening) skipNumbers() error {
	err := s.l.contents.each(s.l.next, func(number uint64) error {
		s.l.next = max(s.l.next, number+1)
		return nil
	})
	if err != nil || s.l.next <= s.l.state.Counter(counterContents) {
		return err
	}
	return s.l.update(func(tx *Tx) error { tx.batch.SetCounter(counterContents, s.l.next); return nil })
}

// knows reports whether the kernel holds a reference to a node, or may receive one: the reply to the request that
// created the node may not have been sent yet.
func (s *opening) knows(n Node) bool {
	switch {
	case s.l.state.Lookups(n) > 0, s.l.state.Requested(n):
		return true
	case n.Own() || s.l.o.Knows == nil:
		return false
	}
	return s.l.o.Knows(n)
}

// readDirtySizes sets the sizes of dirty inodes to the sizes of their contents files during a takeover. It logs
// nothing, and the inodes stay dirty. It sets the times of the inodes that a WRITE has marked. The times of the others
// are in the log.
func (s *opening) readDirtySizes(doubtful []Inode) error {
	s.l.contents.doubt()
	var b state.Batch
	for _, old := range doubtful {
		in := old
		info, ok, err := s.l.contents.stat(in.Content)
		switch {
		case err != nil:
			return err
		case !ok:
			s.rec.Problems = append(s.rec.Problems, fmt.Sprintf("file %d: contents file %06x is missing", in.Node, in.Content))
			continue
		}
		in.Size = info.Size()
		if in.Flags&state.FlagWritten != 0 {
			in.Mtime = max(in.Mtime, info.ModTime().UnixNano())
			in.Ctime = max(in.Ctime, in.Mtime)
		}
		b.PutInode(&in, &old)
		s.l.due[in.Node] = struct{}{}
	}
	return s.l.state.Apply(b.Bytes())
}

// countLookups starts to count the kernel's lookups. If tookOver is set, it continues the counts of the previous
// process.
func (s *opening) countLookups(tookOver bool) (err error) {
	if s.l.o.ReadOnly || s.l.o.still {
		return s.l.state.Count(nil)
	}
	if !tookOver {
		s.l.counts.close()
		if s.l.counts, err = createLookupCounts(s.l.o.FS, s.lookupCountsPath(), s.l.o.boot); err != nil {
			return err
		}
	}
	return s.l.state.Count(s.l.counts.memory)
}

// lookupCountsPath returns the path of the file with the kernel's lookup counts.
func (s *opening) lookupCountsPath() string { return filepath.Join(s.l.dir, "lookups") }
