package overlay

import (
	"fmt"
	"path/filepath"

	"github.com/artifactfs/artifactfs/overlay/state"
)

// recover makes the state, which was replayed from the log, agree with the contents files. It returns the set of contents
// files that have an owner; all other contents files may be orphans. A nil set means that no search for orphans is needed.
//
// After Close nothing needs to be done. After a kill the log is complete, and the kernel has every byte that was written:
// only the sizes of dirty inodes are outdated. After power loss the log and the contents files may have reached the disk up
// to different points in time, so every contents file is checked. The same holds if the host went down after Close: Close
// writes the sizes to the log, but does not sync the contents.
func (l *Layer) recover(rec *Recovery) (owned map[uint64]struct{}, err error) {
	owned = map[uint64]struct{}{}
	var doubtful []Inode
	l.state.EachInode(func(in Inode) bool {
		forsaken := in.Nlink == 0 && !(rec.TookOver && l.knows(in.Node)) // no process has the node open
		if forsaken && !l.o.ReadOnly {
			l.forsaken = append(l.forsaken, in.Node)
		}
		if rec.Start == Clean {
			return true
		}
		if in.Content != 0 {
			owned[in.Content] = struct{}{}
		}
		switch {
		case forsaken, in.Content == 0:
		case rec.Start == PowerLoss, rec.Start == Rebooted, in.Flags != 0:
			doubtful = append(doubtful, in)
		}
		return true
	})
	if rec.Start == Clean {
		return nil, nil
	}
	// Dead contents files are not orphans: the log names them, and the janitor removes them.
	l.state.EachDead(func(number uint64) bool { owned[number] = struct{}{}; return true })
	if rec.TookOver {
		return owned, l.readDirtySizes(rec, doubtful)
	}
	var lost []uint64
	for len(doubtful) > 0 {
		some := doubtful[:min(len(doubtful), slice)]
		if err := l.correct(rec, some, &lost); err != nil {
			return nil, err
		}
		doubtful = doubtful[len(some):]
	}
	if l.o.ReadOnly {
		return nil, nil
	}
	if rec.Start == PowerLoss {
		if err := l.skipNumbers(); err != nil {
			return nil, err
		}
	}
	// The killed process may have created subdirectories. A later fsync promises that a file is found after a power cut, so
	// the names of these subdirectories must be on disk.
	if err := l.o.FS.SyncDir(l.contents.dir); err != nil {
		return nil, err
	}
	// The log record was written first: if the files were moved before it, the log could still name a contents file that is
	// missing.
	for _, number := range lost {
		if err := l.contents.lose(number); err != nil {
			return nil, err
		}
		delete(owned, number)
	}
	return owned, nil
}

// correct corrects inodes whose contents files may differ from the log's record of them. It appends to *lost the contents
// files that must be moved to lost+found.
//
// After power loss an unsettled contents file of a base node is not trusted: the node has the base tree's contents again, and
// the file is moved to lost+found. If the contents file of an own node is missing after the host went down, the file becomes
// empty, because a new file without an fsync need not survive. In all other cases a missing contents file is reported as a
// problem, and reading the file fails with ErrDamaged.
func (l *Layer) correct(rec *Recovery, inodes []Inode, lost *[]uint64) error {
	var corrected []put
	for _, old := range inodes {
		in := old
		info, ok, err := l.contents.stat(in.Content)
		if err != nil {
			return err
		}
		base := !in.Node.Own()
		switch {
		case rec.Start == PowerLoss && base && in.Flags&state.FlagUnsettled != 0:
			in.Content, in.Size, in.Flags = 0, SizeOfBase, 0
			if ok {
				*lost = append(*lost, old.Content)
			}
		case !ok && !base && (rec.Start == PowerLoss || rec.Start == Rebooted):
			in.Content, in.Size, in.Flags = 0, 0, 0
			rec.Problems = append(rec.Problems, fmt.Sprintf("file %d is empty, because its contents were not written to disk", in.Node))
		case !ok:
			rec.Problems = append(rec.Problems, fmt.Sprintf("file %d: contents file %06x is missing", in.Node, in.Content))
		default:
			in.Size = info.Size()
			if in.Flags&state.FlagDirty != 0 {
				in.Mtime = max(in.Mtime, info.ModTime().UnixNano())
			}
			in.Flags &^= state.FlagDirty
			if in.Flags&state.FlagUnsettled != 0 {
				l.due[in.Node] = struct{}{}
			}
		}
		if in != old && rec.Start == Rebooted {
			rec.Shrunk = append(rec.Shrunk, in.Node)
		}
		if in != old {
			corrected = append(corrected, put{in: in, old: old, existed: true, logSize: true})
		}
	}
	if !l.o.ReadOnly {
		return l.update(func(tx *Tx) error { tx.puts = append(tx.puts, corrected...); return nil })
	}
	var b state.Batch
	for i := range corrected {
		b.PutInode(&corrected[i].in, &corrected[i].old)
	}
	return l.state.Apply(b.Bytes())
}

// skipNumbers sets the next contents file number to one above those of all existing files, because power loss may have
// removed the record that reserved their numbers.
func (l *Layer) skipNumbers() error {
	err := l.contents.each(l.next, func(number uint64) error {
		l.next = max(l.next, number+1)
		return nil
	})
	if err != nil || l.next <= l.state.Counter(counterContents) {
		return err
	}
	return l.update(func(tx *Tx) error { tx.batch.SetCounter(counterContents, l.next); return nil })
}

// knows reports whether the kernel holds a reference to a node, or may receive one: the reply to the request that created the
// node may not have been sent yet.
func (l *Layer) knows(n Node) bool {
	switch {
	case l.state.Lookups(n) > 0, l.state.Requested(n):
		return true
	case n.Own() || l.o.Knows == nil:
		return false
	}
	return l.o.Knows(n)
}

// readDirtySizes sets the sizes of dirty inodes to those of their contents files during a takeover. It logs nothing, and the
// inodes stay dirty. Their times are left alone, because the kernel has the current ones.
func (l *Layer) readDirtySizes(rec *Recovery, doubtful []Inode) error {
	l.contents.doubt()
	var b state.Batch
	for _, old := range doubtful {
		in := old
		info, ok, err := l.contents.stat(in.Content)
		switch {
		case err != nil:
			return err
		case !ok:
			rec.Problems = append(rec.Problems, fmt.Sprintf("file %d: contents file %06x is missing", in.Node, in.Content))
			continue
		}
		in.Size = info.Size()
		b.PutInode(&in, &old)
		l.due[in.Node] = struct{}{}
	}
	return l.state.Apply(b.Bytes())
}

// countLookups starts to count the kernel's lookups. With tookOver it continues the counts of the previous process.
func (l *Layer) countLookups(tookOver bool) (err error) {
	if l.o.ReadOnly || l.o.still {
		return l.state.Count(nil)
	}
	if !tookOver {
		l.counts.close()
		if l.counts, err = createLookupCounts(l.o.FS, l.lookupCountsPath(), l.o.boot); err != nil {
			return err
		}
	}
	return l.state.Count(l.counts.memory)
}

// lookupCountsPath returns the path of the file with the kernel's lookup counts.
func (l *Layer) lookupCountsPath() string { return filepath.Join(l.dir, "lookups") }
