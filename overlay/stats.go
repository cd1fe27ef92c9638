package overlay

import "syscall"

// Stats are the numbers of a layer.
type Stats struct {
	Entries  int64 // names
	Hidden   int64 // names of the base that are gone
	Inodes   int64
	Contents int64
	Bytes    int64 // in contents
	LogBytes int64
}

// Stats counts what was changed. It looks at every inode.
func (l *Layer) Stats() Stats {
	l.mu.RLock()
	defer l.mu.RUnlock()
	t := l.state.Totals()
	s := Stats{Entries: t.Entries, Hidden: t.Hidden, Inodes: t.Inodes}
	if l.wal != nil {
		s.LogBytes = l.wal.Size()
	}
	uncounted, isThere := l.uncounted()
	l.state.EachInode(func(in Inode) bool {
		if in.Content != 0 && in.Node != uncounted {
			s.Contents++
			s.Bytes += in.Size
		}
		return true
	})
	if isThere {
		s.Inodes--
		s.Entries--
	}
	return s
}

// uncounted returns the node that is no change, and says whether it has a name. l.mu is held.
func (l *Layer) uncounted() (n Node, isThere bool) {
	n = Node(l.state.Counter(counterUncounted))
	in, ok := l.state.Inode(n)
	return n, ok && n.Own() && in.Nlink > 0
}

// Uncounted returns the node that is no change, named or not; 0: there was none.
func (r Reader) Uncounted() Node { return Node(r.t.Counter(counterUncounted)) }

// Changed is how many paths differ from the base: names that are new, gone or moved, and files of the base that were
// changed where they are, but for a file that does not count (Tx.Uncount). It looks at everything there is.
func (l *Layer) Changed() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	t := l.state.Totals()
	changed := t.Entries + t.Hidden
	if _, isThere := l.uncounted(); isThere {
		changed--
	}
	l.state.EachInode(func(in Inode) bool {
		// A directory of the base has an inode as soon as something in it changed.
		if !in.Node.Own() && in.Nlink > 0 && in.Mode&syscall.S_IFMT != syscall.S_IFDIR {
			changed++
		}
		return true
	})
	// A moved file of the base was counted by its name already.
	l.state.EachDir(func(dir Node) bool {
		l.state.ReadDir(dir, 0, func(_ string, n Node, _ uint64) bool {
			if n == 0 || n.Own() {
				return true
			}
			if in, ok := l.state.Inode(n); ok && in.Nlink > 0 && in.Mode&syscall.S_IFMT != syscall.S_IFDIR {
				changed--
			}
			return true
		})
		return true
	})
	return changed
}
