package worktree

import (
	"fmt"

	"github.com/artifactfs/artifactfs/internal/disk/mapped"
	"github.com/artifactfs/artifactfs/object"
)

// resume continues a table that another process wrote. The mapping's pages belong to the files until the host goes
// down: only if it has since, what was not synced may be missing.
func (t *table) resume(root object.ID, boot [16]byte) error {
	h := t.header()
	if h.boot == boot {
		t.synced = h.synced
		if done, err := t.resumeKilled(root); done || err != nil {
			return err
		}
		return t.check(root, maxNode)
	}
	if err := t.check(root, h.synced); err != nil {
		return err
	}
	if err := t.sync(); err != nil { // what was found is what is kept
		return err
	}
	h.boot = boot
	return nil
}

// sync makes every node handed out so far survive a power cut, so that a log that names them may be synced. It does
// nothing if there are none since the last time. It takes t.syncing, and t.append for a moment. After an error the next
// call writes everything again.
func (t *table) sync() error {
	t.syncing.Lock()
	defer t.syncing.Unlock()
	t.append.Lock()
	next := t.next.Load() // published: add stores the place of its block before it gives append free
	root := t.header().root
	t.append.Unlock()
	if next == t.synced {
		return nil
	}
	if t.header().failed != 0 {
		if err := t.touch(); err != nil {
			return fmt.Errorf("sync inode table: %w", err)
		}
	}
	t.header().failed = 1 // also if the process is killed before it hears of the error
	for _, r := range []*mapped.File{t.names, t.records} {
		if err := r.Sync(); err != nil {
			return fmt.Errorf("sync inode table: %w", err)
		}
	}
	t.header().failed = 0
	t.synced = next
	// On disk with the next sync: until then they say too little, which is never wrong.
	t.header().synced, t.header().rootSynced = next, root
	return nil
}

// touch makes every page of the table dirty. A page that the kernel could not write counts as clean afterwards: another
// sync would succeed without it. Records have counters that change without locks, so that one byte of each page is
// stored; names never change once they are written.
func (t *table) touch() error {
	t.append.Lock()
	next, nextName := Node(t.next.Load()), t.nextName
	const recordsInPage = 4096 / recordSize
	for n := Root; n <= next; n += recordsInPage {
		t.rec(min(n, next-1)).touched++
	}
	t.append.Unlock()
	return t.names.Rewrite(nextName)
}
