package overlay

import "go.uber.org/zap"

// Remember counts one look-up of an own node: the kernel may use its number until it forgets it.
func (l *Layer) Remember(n Node) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	l.state.Remember(n)
}

// Forget takes back k look-ups of an own node, and says whether none is left. Without a look-up and without a name it
// ends, contents and all.
func (l *Layer) Forget(n Node, k uint64) (last bool) {
	l.mu.RLock()
	left := l.state.Forget(n, k)
	in, ok := l.state.Inode(n)
	l.mu.RUnlock()
	if left == 0 && ok && in.Nlink == 0 {
		l.forsake(n)
	}
	return left == 0
}

// Release is what ends a base node without a name, whose look-ups the caller counts.
func (l *Layer) Release(n Node) {
	if in, ok := l.Inode(n); ok && in.Nlink == 0 {
		l.forsake(n)
	}
}

// forsake drops a node that has no name and no look-up. If the log has no room for that, the janitor tries again;
// if the process dies first, Open does it.
func (l *Layer) forsake(n Node) {
	if l.o.ReadOnly {
		return
	}
	l.mu.Lock()
	err := l.update(func(tx *Tx) error { l.dropUnused(tx, n); return nil })
	if err != nil {
		l.forsaken = append(l.forsaken, n)
		l.poke()
	}
	l.mu.Unlock()
	if err != nil {
		l.log.Warn("a deleted file's space is not free yet", zap.Uint64("node", uint64(n)), zap.Error(err))
		return
	}
	l.files.retire(n)
}

// dropUnused drops a node unless it has been named or looked up again.
func (l *Layer) dropUnused(tx *Tx, n Node) {
	in, ok := tx.Inode(n)
	if ok && in.Nlink == 0 && (!n.Own() || tx.t.Lookups(n) == 0) {
		tx.drop(in)
	}
}

// dropForsaken drops what could not be dropped before.
func (l *Layer) dropForsaken() error {
	for {
		l.mu.Lock()
		some := l.forsaken[:min(len(l.forsaken), slice)]
		err := l.update(func(tx *Tx) error {
			for _, n := range some {
				l.dropUnused(tx, n)
			}
			return nil
		})
		if err == nil {
			for _, n := range some {
				l.files.retire(n)
			}
			l.forsaken = l.forsaken[len(some):]
		}
		done := len(l.forsaken) == 0
		if done {
			l.forsaken = nil
		}
		l.mu.Unlock()
		if err != nil || done {
			return err
		}
	}
}
