package overlay

import (
	"time"

	"github.com/artifactfs/artifactfs/overlay/state"
)

// settleLater puts a node on the list of those to be settled. l.mu is held.
func (l *Layer) settleLater(n Node) {
	l.due[n] = struct{}{}
	l.poke()
}

// settleDue settles the files that have not been written for a while.
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

// settle settles a file's content if nobody writes it just now, and adds its node to those whose inodes may be cleaned.
func (l *Layer) settle(n Node, all bool, calm *[]Node) error {
	f := l.File(n)
	defer f.Done()
	rest := time.Duration(l.clock() - f.writes.Load()) // a File that nobody kept has not been written lately
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

// distrust notes that a content could not be brought to disk. Trying again would seem to work, because the kernel
// says so once and then calls the pages clean; so the content stays unsettled until its user has been told.
func (l *Layer) distrust(n Node, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults[n] = err
	delete(l.due, n)
	return err
}

// syncContent brings the content and its name to disk. f.mu is held.
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

// settled notes in the log that the content is on disk. f.mu is held.
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

// clean notes the sizes of dirty inodes in the log. A write that is under way notices that and marks its inode anew.
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

// Sync is fsync(2): contents, inode and names survive a power cut when it returns nil. A fault of an earlier sync in
// the background is reported too, once: the kernel would not report it again.
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
		delete(l.due, f.node) // see distrust; this user has been told
		l.mu.Unlock()
	}
	f.mu.RUnlock()
	if err != nil {
		return err
	}
	return l.Sync()
}
