package overlay

import (
	"syscall"

	"github.com/artifactfs/artifactfs/worktree/overlay/state"
)

// Stats holds the counts and sizes of a layer, without the file of Tx.Uncount. Contents and Bytes are also without the
// contents of files that Tx.Adopt has added and that have not changed.
type Stats struct {
	Entries  int64 // number of names
	Hidden   int64 // number of names of the base tree that are hidden
	Inodes   int64 // number of nodes with an inode in the layer
	Contents int64 // number of contents files
	Bytes    int64 // total size of the contents files in bytes
	Carried  int64 // number of nodes that Tx.Adopt has added and that have not changed
	LogBytes int64 // size of the log in bytes
}

// Stats counts the changes in the layer. It visits every inode.
func (l *Layer) Stats() Stats {
	l.mu.RLock()
	defer l.mu.RUnlock()
	t := l.state.Totals()
	s := Stats{Entries: t.Entries, Hidden: t.Hidden, Inodes: t.Inodes}
	if l.wal != nil {
		s.LogBytes = l.wal.Size()
	}
	left, isThere := uncounted(l.state)
	l.state.EachInode(func(in Inode) bool {
		switch {
		case Carried(in):
			s.Carried++
		case in.Content != 0 && in.Node != left:
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

// uncounted returns the node that Tx.Uncount excluded, and reports whether the node has a name.
func uncounted(r Reader) (n Node, isThere bool) {
	n = Uncounted(r)
	in, ok := r.Inode(n)
	return n, ok && n.Own() && in.Nlink > 0
}

// Uncounted returns the node that Tx.Uncount excluded, with or without a name, or 0 if there is none.
func Uncounted(r Reader) Node { return Node(r.Counter(counterUncounted)) }

// Changed returns the number of paths that differ from the base tree: new, removed and moved names, and files of the
// base tree that were changed in place. It leaves out the file of Tx.Uncount, files of which only Tx.PutTimes has set
// the times, and nodes that Tx.Adopt has added and that have not changed. It visits every inode and every entry.
func (l *Layer) Changed() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	t := l.state.Totals()
	changed := t.Entries + t.Hidden
	if _, isThere := uncounted(l.state); isThere {
		changed--
	}
	l.state.EachInode(func(in Inode) bool {
		if isChanged(l.state, in) {
			changed++
		}
		return true
	})
	// A moved file of the base tree counts once, by its name, so subtract the count by its inode. A name of a node
	// that was adopted does not count.
	l.state.EachDir(func(dir Node) bool {
		l.state.ReadDir(dir, 0, func(_ uint64, _ string, n Node, _ Presence) bool {
			if n == 0 {
				return true
			}
			in, ok := l.state.Inode(n)
			if ok && (Carried(in) || !n.Own() && isChanged(l.state, in)) {
				changed--
			}
			return true
		})
		return true
	})
	return changed
}

// isChanged reports whether an inode is that of a named file of the base tree that was changed in place. The result is
// false for directories, because a directory of the base tree has an inode as soon as an entry in it changes, and for
// files that Tx.PutTimes has stored and that were not changed since.
func isChanged(r Reader, in Inode) bool {
	return !in.Node.Own() && in.Nlink > 0 && in.Mode&syscall.S_IFMT != syscall.S_IFDIR && !IsOnlyTimes(r, in)
}

// IsOnlyTimes reports whether Tx.PutTimes has stored an inode, and nothing has changed it since. Earlier versions of
// this program do not clear the flag when they change the inode, but set its ctime.
func IsOnlyTimes(r Reader, in Inode) bool {
	return in.Flags&state.FlagTimes != 0 && in.Size == SizeOfBase && in.Ctime <= int64(r.Counter(counterTimes)) &&
		len(r.Xattrs(in.Node)) == 0
}
