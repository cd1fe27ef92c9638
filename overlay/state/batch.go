package state

// Batch is a sequence of puts, encoded as they are added. Every put says what is to be, not what to do, so that
// applying one twice does no harm. The zero Batch is ready.
type Batch struct {
	b    []byte
	puts int
}

func (b *Batch) Bytes() []byte { return b.b }
func (b *Batch) Puts() int     { return b.puts }
func (b *Batch) Reset()        { b.b, b.puts = b.b[:0], 0 }

// PutInode sets the fields in which new differs from old; all of them if old is nil.
func (b *Batch) PutInode(new, old *Inode)                   { panic("not written yet") }
func (b *Batch) SetEntry(dir Node, name string, n Node)     { panic("not written yet") }
func (b *Batch) Hide(dir Node, name string)                 { panic("not written yet") }
func (b *Batch) ClearEntry(dir Node, name string)           { panic("not written yet") }
func (b *Batch) SetTarget(n Node, target string)            { panic("not written yet") }
func (b *Batch) SetXattr(n Node, name string, value []byte) { panic("not written yet") }
func (b *Batch) RemoveXattr(n Node, name string)            { panic("not written yet") }

// Drop forgets a node: inode, target, attributes, and the entries in it if it is a directory.
func (b *Batch) Drop(n Node)                    { panic("not written yet") }
func (b *Batch) DeadContent(number uint64)      { panic("not written yet") }
func (b *Batch) ContentGone(number uint64)      { panic("not written yet") }
func (b *Batch) SetCounter(c Counter, v uint64) { panic("not written yet") }
