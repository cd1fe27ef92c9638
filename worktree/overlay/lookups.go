package overlay

import (
	"fmt"
	"sync"

	"go.uber.org/zap"
)

// Remember adds one to the kernel's lookup count of an own node, because a reply passes the node's number to the
// kernel. The kernel may use the number until it sends a FORGET.
func (l *Layer) Remember(n Node) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	l.state.Remember(n)
}

// Forget subtracts k from the lookup count of an own node, and reports whether the count is now zero. If the node then
// has no name, Forget drops it together with its contents.
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

// Release drops a base node that the kernel has forgotten, if the node has no name. The caller must count the lookups
// of base nodes, because the layer does not.
func (l *Layer) Release(n Node) {
	if in, ok := l.Inode(n); ok && in.Nlink == 0 {
		l.forsake(n)
	}
}

// forsake drops a node that has neither a name nor lookups. If the log has no space for this change, the janitor tries
// again. If the process dies first, the next Open drops the node.
func (l *Layer) forsake(n Node) {
	if l.o.ReadOnly {
		return
	}
	l.mu.Lock()
	if l.held > 0 {
		l.forsaken = append(l.forsaken, n)
		l.mu.Unlock()
		return
	}
	err := l.update(func(tx *Tx) error { l.dropUnused(tx, n); return nil })
	if err != nil {
		l.forsaken = append(l.forsaken, n)
		l.janitor.poke()
	}
	l.mu.Unlock()
	if err != nil {
		l.log.Warn("free space of deleted file", zap.Uint64("node", uint64(n)), zap.Error(err))
		return
	}
	l.files.retire(n)
}

// dropUnused drops a node, unless it has received a name or a lookup since the caller checked it.
func (l *Layer) dropUnused(tx *Tx, n Node) {
	in, ok := tx.Inode(n)
	if !ok || in.Nlink != 0 || n.Own() && tx.Lookups(n) != 0 || !n.Own() && l.o.Knows != nil && l.o.Knows(n) {
		return
	}
	tx.drop(in)
}

// Hold keeps the nodes that have neither a name nor lookups, with their contents, until the returned function is
// called, so that the caller can give names back that it has removed. It also allocates disk space for n bytes of log
// records, so that the changes of the caller and their reversal do not fail on a full disk.
func (l *Layer) Hold(n int64) (release func(), err error) {
	if err := l.withRoom(func() error { return l.wal.Reserve(n) }); err != nil {
		return nil, fmt.Errorf("allocate space in the overlay's log: %w", err)
	}
	l.mu.Lock()
	l.held++
	l.mu.Unlock()
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.held--; l.held == 0 && len(l.forsaken) > 0 {
			l.janitor.poke()
		}
	}), nil
}

// dropForsaken drops the nodes that could not be dropped earlier, in updates of at most 1000 nodes each (the constant
// slice).
func (l *Layer) dropForsaken() error {
	for {
		l.mu.Lock()
		if l.held > 0 {
			l.mu.Unlock()
			return nil
		}
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
