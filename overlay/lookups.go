package overlay

import "go.uber.org/zap"

// Remember adds one to the kernel's lookup count of an own node: the kernel may use the node's number until it forgets
// it.
func (l *Layer) Remember(n Node) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	l.state.Remember(n)
}

// Forget subtracts k from the lookup count of an own node, and reports whether the count is now zero. A node with
// neither lookups nor a name is dropped together with its contents.
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

// Release drops a base node without a name once the kernel has forgotten it. The caller counts the lookups of base
// nodes.
func (l *Layer) Release(n Node) {
	if in, ok := l.Inode(n); ok && in.Nlink == 0 {
		l.forsake(n)
	}
}

// forsake drops a node that has neither name nor lookups. If the log has no space for that, the janitor tries again; if
// the process dies first, the next Open drops the node.
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

// dropUnused drops a node unless it was given a name or looked up again meanwhile.
func (l *Layer) dropUnused(tx *Tx, n Node) {
	in, ok := tx.Inode(n)
	if ok && in.Nlink == 0 && (!n.Own() || tx.t.Lookups(n) == 0) {
		tx.drop(in)
	}
}

// dropForsaken drops the nodes that forsake could not drop, slice nodes at a time.
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
