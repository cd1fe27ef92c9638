package overlay

import (
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/overlay/state"
)

// Reader reads the state. It is good within View or Update, memory only.
type Reader struct{ t *state.Table }

// Inode returns a node's inode if the layer has one.
func (r Reader) Inode(n Node) (Inode, bool) { return r.t.Inode(n) }

// Entry returns what the layer knows of a name.
func (r Reader) Entry(dir Node, name string) (Node, Presence) { return r.t.Entry(dir, name) }

// ReadDir emits what the layer knows of the names in dir behind a cookie (0: from the start) until emit returns false.
// The name is good until emit returns. A cookie is below 1<<49 and stays right whatever comes and goes meanwhile.
func (r Reader) ReadDir(dir Node, after uint64, emit func(cookie uint64, name string, n Node, p Presence) bool) {
	r.t.ReadDir(dir, after, func(name string, n Node, cookie uint64) bool {
		if n == 0 {
			return emit(cookie, name, 0, Hidden)
		}
		return emit(cookie, name, n, Present)
	})
}

// EachDir emits every node that has entries until emit returns false.
func (r Reader) EachDir(emit func(dir Node) bool) { r.t.EachDir(emit) }

// Names calls emit for every name that the layer has for n until it returns false. It looks at all names there are, but
// at no more than most, and returns at how many: most if there may be more.
func (r Reader) Names(n Node, most int64, emit func(dir Node, name string) bool) (looked int64) {
	r.t.EachDir(func(dir Node) bool {
		more := true
		r.t.ReadDir(dir, 0, func(name string, at Node, _ uint64) bool {
			if looked >= most {
				more = false
				return false
			}
			looked++
			more = at != n || emit(dir, name)
			return more
		})
		return more
	})
	return looked
}

// Entries counts the names in dir.
func (r Reader) Entries(dir Node) (present, hidden int) { return r.t.EntryCount(dir) }

// Target returns where a symbolic link points.
func (r Reader) Target(n Node) (string, bool) { return r.t.Target(n) }

// Xattr returns an extended attribute.
func (r Reader) Xattr(n Node, name string) ([]byte, bool) { return r.t.Xattr(n, name) }

// Xattrs returns the names of a node's extended attributes.
func (r Reader) Xattrs(n Node) []string { return r.t.Xattrs(n) }

// EachInode emits every inode until emit returns false.
func (r Reader) EachInode(emit func(Inode) bool) { r.t.EachInode(emit) }

// Request reports whether a request of the kernel was answered by an update, and which node it made; 0: none.
func (r Reader) Request(id uint64) (made Node, ok bool) { return r.t.Request(id) }

// Lookups is how often the kernel was told of an own node.
func (r Reader) Lookups(n Node) uint64 { return r.t.Lookups(n) }

// Tx is an update under way. It reads the state as it was before, but inodes as they have been put so far.
type Tx struct {
	Reader
	l     *Layer
	batch state.Batch
	puts  []put
	drops []Node
	nodes []Node   // reserved
	dead  []uint64 // contents that end with this update

	request uint64 // see Request; 0: it is for none
	made    Node
}

// put is an inode to be written once f has returned; however often it was put, only what differs is logged.
type put struct {
	in, old Inode
	existed bool
	logSize bool // the log may have another size than the state
	settled bool // no longer dirty
}

// Update calls f, and makes what it asked for happen as a whole; it happens if and only if Update returns nil. What
// f must not do: wait, or call the layer. Where the log has no room f is called twice, the second time from the start.
func (l *Layer) Update(f func(tx *Tx) error) error {
	return l.withRoom(func() error { return l.tryUpdate(f) })
}

func (l *Layer) tryUpdate(f func(tx *Tx) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.update(f)
}

// update is Update with l.mu held.
func (l *Layer) update(f func(tx *Tx) error) error {
	switch {
	case l.o.ReadOnly:
		return syscall.EROFS
	case l.broken != nil:
		return l.broken
	}
	tx := &l.tx
	tx.reset(l)
	err := f(tx)
	if err == nil {
		err = tx.commit()
	}
	if err != nil {
		for _, n := range tx.nodes {
			l.state.CancelNode(n)
		}
	}
	return err
}

func (tx *Tx) reset(l *Layer) {
	tx.l, tx.Reader = l, Reader{l.state}
	tx.batch.Reset()
	tx.puts, tx.drops, tx.nodes, tx.dead = tx.puts[:0], tx.drops[:0], tx.nodes[:0], tx.dead[:0]
	tx.request, tx.made = 0, 0
}

// commit appends to the log, then changes the state.
func (tx *Tx) commit() error {
	l := tx.l
	tx.encode()
	if tx.batch.Puts() == 0 {
		return nil
	}
	if err := l.wal.Append(tx.batch.Bytes(), time.Now().UnixNano()); err != nil {
		return fmt.Errorf("append to overlay's log: %w", err)
	}
	if err := l.state.Apply(tx.batch.Bytes()); err != nil {
		// The log says now what the state does not. Only a defect of this program leads here.
		l.broken = fmt.Errorf("apply change: %w: %w", err, ErrDamaged)
		return l.broken
	}
	if l.wal.Size() > longLog {
		l.poke() // to see whether it is longer than it need be
	}
	for _, p := range tx.puts {
		if p.settled {
			l.files.unmark(p.in.Node)
		}
		// A node that begins without a name (O_TMPFILE) is about to be told to the kernel.
		if p.existed && p.in.Nlink == 0 && p.in.Node.Own() && l.state.Lookups(p.in.Node) == 0 {
			l.forsaken = append(l.forsaken, p.in.Node)
			l.poke()
		}
	}
	if len(tx.dead) > 0 {
		l.dead = append(l.dead, tx.dead...)
		l.poke()
	}
	return nil
}

func (tx *Tx) encode() {
	for i := range tx.puts {
		p := &tx.puts[i]
		if !p.existed {
			tx.batch.PutInode(&p.in, nil)
			continue
		}
		if p.logSize {
			p.old.Size = ^p.in.Size
		}
		if p.in != p.old {
			tx.batch.PutInode(&p.in, &p.old)
		}
	}
	for _, n := range tx.drops {
		tx.batch.Drop(n)
	}
	for _, number := range tx.dead {
		tx.batch.DeadContent(number)
	}
	if tx.request != 0 && tx.batch.Puts() > 0 {
		tx.batch.Request(tx.request, tx.made)
	}
}

// Now is the time that the kernel gives to what it changes: with the same clock a first write in the same tick
// needs no SETATTR.
func (tx *Tx) Now() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts) != nil {
		return time.Now().UnixNano()
	}
	return ts.Nano()
}

// NewNode reserves a number for a new node, which is to be put in the same update.
func (tx *Tx) NewNode() (Node, error) {
	n, err := tx.t.NewNode()
	if err == nil {
		tx.nodes = append(tx.nodes, n)
	}
	return n, err
}

// Inode returns a node's inode as this update has it so far.
func (tx *Tx) Inode(n Node) (Inode, bool) {
	for i := range tx.puts {
		if tx.puts[i].in.Node == n {
			return tx.puts[i].in, true
		}
	}
	return tx.t.Inode(n)
}

// PutInode sets a node's inode. Content, Flags and, once the inode exists, Size belong to File and stay as they are.
// A node whose Nlink becomes 0 stays until the kernel has forgotten it.
func (tx *Tx) PutInode(in Inode) {
	cur, ok := tx.Inode(in.Node)
	if !ok {
		in.Content, in.Flags = 0, 0
		tx.put(in)
		return
	}
	in.Size, in.Content, in.Flags = cur.Size, cur.Content, cur.Flags
	if in.Flags&state.FlagDirty != 0 && in.Mtime != cur.Mtime {
		// The time that somebody sets must not lose against the content file's after a kill.
		in.Flags &^= state.FlagDirty
		p := tx.put(in)
		p.logSize, p.settled = true, true
		return
	}
	tx.put(in)
}

func (tx *Tx) put(in Inode) *put {
	for i := range tx.puts {
		if tx.puts[i].in.Node == in.Node {
			tx.puts[i].in = in
			return &tx.puts[i]
		}
	}
	old, existed := tx.t.Inode(in.Node)
	tx.puts = append(tx.puts, put{in: in, old: old, existed: existed})
	return &tx.puts[len(tx.puts)-1]
}

// SetEntry makes name in dir an entry for n.
func (tx *Tx) SetEntry(dir Node, name string, n Node) { tx.batch.SetEntry(dir, name, n) }

// Hide says that dir has no such name, whatever the base has.
func (tx *Tx) Hide(dir Node, name string) { tx.batch.Hide(dir, name) }

// ClearEntry says that the base knows what name in dir is.
func (tx *Tx) ClearEntry(dir Node, name string) { tx.batch.ClearEntry(dir, name) }

// Request says which request of the kernel the update is for, and which node that makes, if any. It is remembered if
// anything is changed: what changes nothing may be done once more.
func (tx *Tx) Request(id uint64, made Node) { tx.request, tx.made = id, made }

// Uncount says that a new file of the layer's own is no change: neither Changed nor Stats count it. There is one.
func (tx *Tx) Uncount(n Node) { tx.batch.SetCounter(counterUncounted, uint64(n)) }

// SetTarget says where a symbolic link points.
func (tx *Tx) SetTarget(n Node, target string) { tx.batch.SetTarget(n, target) }

// SetXattr sets an extended attribute.
func (tx *Tx) SetXattr(n Node, name string, value []byte) { tx.batch.SetXattr(n, name, value) }

// RemoveXattr removes an extended attribute.
func (tx *Tx) RemoveXattr(n Node, name string) { tx.batch.RemoveXattr(n, name) }

// drop ends a node, and its content.
func (tx *Tx) drop(in Inode) {
	tx.drops = append(tx.drops, in.Node)
	if in.Content != 0 {
		tx.dead = append(tx.dead, in.Content)
	}
}

// errGone says that a node is not, or no longer, in the layer.
func errGone(n Node) error {
	return fmt.Errorf("node %d of the overlay: %w: %w", n, fs.ErrNotExist, syscall.ESTALE)
}
