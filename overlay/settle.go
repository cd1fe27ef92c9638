package overlay

import (
	"time"

	"github.com/artifactfs/artifactfs/overlay/state"
)

// settleLater adds a node to the dirty files that the janitor syncs. l.mu is held.
func (l *Layer) settleLater(n Node) {
	l.due[n] = struct{}{}
	l.poke()
}

// settleDue syncs and cleans the dirty files that were not written recently; with all, every dirty file.
func (l *Layer) settleDue(all bool) error {
	l.mu.RLock()
	nodes := make([]Node, 0, len(l.due))
	for n := range l.due {
		nodes = append(nodes, n)
	}
	l.mu.RUnlock()
	var calm []Node
	var failed error
	for _, n := range nodes {
		if err := l.settle(n, all, &calm); err != nil {
			failed = err
		}
	}
	for len(calm) > 0 {
		some := calm[:min(len(calm), slice)]
		if err := l.clean(some); err != nil {
			return err
		}
		calm = calm[len(some):]
	}
	return failed
}

// settle syncs a file's contents if required, unless the file was written recently, and appends its node to *calm: the
// nodes whose inodes may be marked clean.
func (l *Layer) settle(n Node, all bool, calm *[]Node) error {
	f := l.File(n)
	defer f.Done()
	rest := time.Duration(l.clock() - f.writes.Load()) // writes is 0 if no File was kept open: not written recently
	if !all && rest < l.o.quiet {
		return nil
	}
	if in, ok := l.Inode(n); ok && in.Flags&state.FlagUnsettled != 0 {
		if err := f.rlock(); err != nil {
			return l.distrust(n, err)
		}
		defer f.mu.RUnlock()
		if err := f.syncContent(); err != nil {
			return l.distrust(n, err)
		}
		if err := f.settled(); err != nil {
			return err
		}
	}
	*calm = append(*calm, n)
	return nil
}

// distrust records that a contents file could not be synced. A second sync would appear to succeed, because the kernel
// reports a write error once and then treats the pages as clean; so the file stays unsettled until an fsync of the file
// has returned the error.
func (l *Layer) distrust(n Node, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults[n] = err
	delete(l.due, n)
	return err
}

// syncContent writes the contents and the contents file's name to disk. f.mu is held.
func (f *File) syncContent() error {
	if f.place != inContent {
		return nil
	}
	if err := f.data.DataSync(); err != nil {
		return err
	}
	if !f.synced.Load() {
		if err := f.l.contents.syncEntry(f.number); err != nil {
			return err
		}
		f.synced.Store(true)
	}
	return nil
}

// settled records in the log that the contents are on disk. f.mu is held.
func (f *File) settled() error {
	if in, ok := f.l.Inode(f.node); !ok || in.Flags&state.FlagUnsettled == 0 {
		return nil
	}
	return f.l.Update(func(tx *Tx) error {
		if in, ok := tx.Inode(f.node); ok {
			in.Flags &^= state.FlagUnsettled
			tx.put(in)
		}
		return nil
	})
}

// clean logs the sizes of dirty inodes and marks the inodes clean. A concurrent write notices that and marks its inode
// dirty again.
func (l *Layer) clean(nodes []Node) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.update(func(tx *Tx) error {
		for _, n := range nodes {
			in, ok := tx.Inode(n)
			if !ok || in.Flags&state.FlagDirty == 0 {
				continue
			}
			in.Flags &^= state.FlagDirty
			p := tx.put(in)
			p.logSize, p.settled = true, true
		}
		return nil
	})
	if err == nil {
		for _, n := range nodes {
			delete(l.due, n)
		}
	}
	return err
}

// Sync is fsync(2): contents, inode and names survive a power cut when it returns nil. It also returns an error of an
// earlier background sync, once: the kernel would not report that error again.
//
// It syncs in this order: the contents, the name of the contents file, the mark in the log that the contents are on
// disk, and the log. The mark must not precede the contents: after power loss a file without the unsettled flag keeps
// its contents file.
func (f *File) Sync() error {
	l := f.l
	if l.o.ReadOnly {
		return nil
	}
	l.mu.Lock()
	fault := l.faults[f.node]
	delete(l.faults, f.node)
	l.mu.Unlock()
	if fault != nil {
		return fault
	}
	if err := f.rlock(); err != nil {
		return err
	}
	err := f.syncContent()
	if err == nil {
		err = f.settled()
	} else {
		l.mu.Lock()
		delete(l.due, f.node) // see distrust; the caller receives the error
		l.mu.Unlock()
	}
	f.mu.RUnlock()
	if err != nil {
		return err
	}
	return l.Sync()
}
