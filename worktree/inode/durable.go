package inode

import (
	"fmt"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk/mapped"
)

// resume continues a table that another process has written. When a process dies, the kernel keeps the pages of mapped
// files until the host stops. Therefore records that were not synced can be missing only if the host was restarted
// since the process died.
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
	if err := t.Sync(); err != nil { // writes the changes that check has made to disk
		return err
	}
	h.boot = boot
	return nil
}

// Sync writes all nodes that were allocated before the call to disk, so that afterwards a log that refers to them may
// be synced. It does nothing if no node was allocated since the last call. After an error, the next call writes
// everything again. Sync holds t.syncing while it waits for the disk, and t.append for a short time.
func (t *Table) Sync() error {
	t.syncing.Lock()
	defer t.syncing.Unlock()
	t.append.Lock()
	// all nodes before next are published, because Add stores the position of its block before it releases t.append
	next := t.next.Load()
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
	t.header().failed = 1 // the value 1 remains if the process is killed before it has handled an error of the sync
	for _, r := range []*mapped.File{t.names, t.records} {
		if err := r.Sync(); err != nil {
			return fmt.Errorf("sync inode table: %w", err)
		}
	}
	t.header().failed = 0
	t.synced = next
	// The next sync writes these two fields to disk. Until then, their values on disk are too low, so that after a power
	// loss more records than necessary are treated as possibly lost.
	t.header().synced, t.header().rootSynced = next, root
	return nil
}

// touch makes every page of the table dirty. This is necessary after a failed sync: the kernel marks a page that it
// could not write as clean, and the next sync would succeed without writing the page. The counters in records change
// without locks, so touch changes a separate byte in each page of records. Names never change, so touch makes each page
// of names dirty by storing the byte that the page already contains.
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
