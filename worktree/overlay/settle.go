package overlay

import (
	"time"

	"github.com/artifactfs/artifactfs/worktree/overlay/state"
)

// settleLater adds a node to the files that the janitor will sync and mark clean. The caller holds l.mu.
func (l *Layer) settleLater(n Node) {
	l.due[n] = struct{}{}
	l.janitor.poke()
}

// settleDue syncs the dirty files that were not written recently, or all dirty files if all is set, and marks their
// inodes clean. After a failure it continues with the other files and returns the last error.
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

// settle syncs the contents of a file if the file is unsettled, and appends the file's node to *calm, the list of the
// nodes whose inodes may be marked clean. If the file was written recently, settle does nothing unless all is set.
func (l *Layer) settle(n Node, all bool, calm *[]Node) error {
	f := l.File(n)
	defer f.Done()
	// writes is 0 if no File was kept open, which means that the file was not written recently.
	rest := time.Duration(l.clock() - f.writes.Load())
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

// distrust records that a contents file could not be synced, and returns err. The kernel reports a write error once and
// then treats the pages as clean, so a second sync would appear to succeed. So the file stays unsettled until an fsync
// of the file has returned the error.
func (l *Layer) distrust(n Node, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults[n] = err
	delete(l.due, n)
	return err
}

// syncContent writes the contents and the name of the contents file to disk. The caller holds f.mu.
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

// settled records in the log that the contents are on disk, if they were unsettled. The caller holds f.mu.
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

// clean writes the sizes of dirty inodes to the log of the overlay, and then marks the inodes clean. A write that runs
// at the same time marks its inode dirty again, so its size is logged by the next call.
func (l *Layer) clean(nodes []Node) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.update(func(tx *Tx) error {
		for _, n := range nodes {
			in, ok := tx.Inode(n)
			if !ok || in.Flags&state.FlagDirty == 0 {
				continue
			}
			in.Flags &^= state.FlagDirty | state.FlagWritten
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

// Sync works like fsync(2): if it returns nil, contents, inode and names survive a power cut. If an earlier background
// sync of the file failed, Sync returns that error once, because the kernel does not report the error a second time.
//
// Sync writes in this order: the contents, the name of the contents file, the record in the log that the contents are
// on disk, and the log itself. That record must not precede the contents, because after power loss a file without the
// unsettled flag keeps its contents file.
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
		// The janitor must not sync the file again: that sync would succeed although bytes may be lost (see distrust).
		// The caller receives the error of this sync.
		delete(l.due, f.node)
		l.mu.Unlock()
	}
	f.mu.RUnlock()
	if err != nil {
		return err
	}
	return l.Sync()
}
