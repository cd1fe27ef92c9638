// Package state keeps the upper namespace in memory.
package state

import "errors"

// ErrBatch says that bytes are no batch.
var ErrBatch = errors.New("no batch of changes")

// Table is the state. It has no locks: reads may run concurrently, and Remember and Forget with them; everything
// else must be alone.
type Table struct{}

func New() *Table                                             { panic("not written yet") }
func (t *Table) Close() error                                 { panic("not written yet") }
func (t *Table) Apply(batch []byte) error                     { panic("not written yet") } // ErrBatch: nothing was changed
func (t *Table) Inode(n Node) (Inode, bool)                   { panic("not written yet") }
func (t *Table) Entry(dir Node, name string) (Node, Presence) { panic("not written yet") }

// ReadDir calls emit for the entries behind a cookie (0: from the start) until it returns false. The name lies in
// the table: clone it to keep it. A Hidden entry's node is 0. Cookies are below 1<<49.
func (t *Table) ReadDir(dir Node, after uint64, emit func(name string, n Node, cookie uint64) bool) {
	panic("not written yet")
}
func (t *Table) EntryCount(dir Node) (present, hidden int)         { panic("not written yet") }
func (t *Table) Target(n Node) (string, bool)                      { panic("not written yet") }
func (t *Table) Xattr(n Node, name string) (value []byte, ok bool) { panic("not written yet") }
func (t *Table) Xattrs(n Node) []string                            { panic("not written yet") }
func (t *Table) HasXattrs(n Node) bool                             { panic("not written yet") }
func (t *Table) Counter(c Counter) uint64                          { panic("not written yet") }
func (t *Table) Totals() Totals                                    { panic("not written yet") }

// EachInode calls emit for every inode until it returns false, own ones first.
func (t *Table) EachInode(emit func(Inode) bool) { panic("not written yet") }

// EachDir calls emit for every node that has entries.
func (t *Table) EachDir(emit func(dir Node) bool) { panic("not written yet") }

// EachDead calls emit for every content number that is dead and not yet gone.
func (t *Table) EachDead(emit func(number uint64) bool) { panic("not written yet") }

// Dump adds about limit puts to b, from which a new table would become like this one. Changes may be applied between
// two calls if they reach the new table in the same order as the dump's batches.
func (t *Table) Dump(c Cursor, limit int, b *Batch) (next Cursor, done bool) {
	panic("not written yet")
}

// NewNode reserves a node for a PutInode; CancelNode gives it back if that is not to come.
func (t *Table) NewNode() (Node, error) { panic("not written yet") }
func (t *Table) CancelNode(n Node)      { panic("not written yet") }

// Remember counts one look-up of an own node by the kernel, Forget takes k back and says how many are left.
func (t *Table) Remember(n Node)                       { panic("not written yet") }
func (t *Table) Forget(n Node, k uint64) (left uint64) { panic("not written yet") }
func (t *Table) Lookups(n Node) uint64                 { panic("not written yet") }
