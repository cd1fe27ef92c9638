package inode

import (
	"fmt"

	"github.com/artifactfs/artifactfs/internal/disk/mapped"
	"github.com/artifactfs/artifactfs/object"
)

// resume continues a table that another process wrote. The kernel keeps the pages of the mapped files when the process dies,
// until the host stops. So records that were not synced can be missing only if the host was restarted since.
func (t *Table) resume(root object.ID, boot [16]byte) error {
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
	if err := t.Sync(); err != nil { // makes the result of the check durable
		return err
	}
	h.boot = boot
	return nil
}

// Sync writes all nodes allocated so far to disk, so that a log that refers to them may be synced. It does nothing if no
// node was allocated since the last call. It takes t.syncing, and t.append for a moment. After an error the next call
// writes everything again.
func (t *Table) Sync() error {
	t.syncing.Lock()
	defer t.syncing.Unlock()
	t.append.Lock()
	next := t.next.Load() // all nodes before next are published: Add stores the position of its block before it releases append
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
	t.header().failed = 1 // stays set if the process is killed before it sees the error
	for _, r := range []*mapped.File{t.names, t.records} {
		if err := r.Sync(); err != nil {
			return fmt.Errorf("sync inode table: %w", err)
		}
	}
	t.header().failed = 0
	t.synced = next
	// These two fields reach the disk with the next sync. Until then their values on disk are too low, which is harmless.
	t.header().synced, t.header().rootSynced = next, root
	return nil
}

// touch makes every page of the table dirty. The kernel marks a page that it could not write as clean, so that the next
// sync would succeed without writing it. Records contain counters that change without locks, so touch stores one byte in
// each page of the records; names never change after they are written.
func (t *Table) touch() error {
	t.append.Lock()
	next, nextName := Node(t.next.Load()), t.nextName
	const recordsInPage = 4096 / recordSize
	for n := Root; n <= next; n += recordsInPage {
		t.At(min(n, next-1)).touched++
	}
	t.append.Unlock()
	return t.names.Rewrite(nextName)
}
