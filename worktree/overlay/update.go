package overlay

import (
	"fmt"
	"io/fs"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/worktree/overlay/state"
)

// Reader reads the state from memory. It must not be used after the View or Update to which it belongs has returned.
type Reader interface {
	// Inode returns the layer's inode of a node, and false if the layer has none.
	Inode(n Node) (Inode, bool)
	// Entry returns the layer's entry for a name in dir: unknown, hidden, or present with its node.
	Entry(dir Node, name string) (Node, Presence)
	// ReadDir calls emit for the layer's entries in dir that follow the cookie in the parameter after (0 means from the
	// start), until emit returns false. The name is valid until emit returns. Cookies are below 1<<49 and stay valid
	// while entries are added and removed.
	ReadDir(dir Node, after uint64, emit func(cookie uint64, name string, n Node, p Presence) bool)
	// EachDir calls emit for every node that has entries, until emit returns false.
	EachDir(emit func(dir Node) bool)
	// Names calls emit for every name of n in the layer, until emit returns false. It visits at most as many entries as
	// the parameter most states, and returns the number of visited entries. If the result equals most, n may have more
	// names.
	Names(n Node, most int64, emit func(dir Node, name string) bool) (looked int64)
	// Entries returns the numbers of present and of hidden entries in dir.
	Entries(dir Node) (present, hidden int)
	// Target returns the target of a symbolic link, and false if the layer has none.
	Target(n Node) (string, bool)
	// Xattr returns the value of an extended attribute, and false if the layer has none.
	Xattr(n Node, name string) ([]byte, bool)
	// Xattrs returns the names of a node's extended attributes, sorted.
	Xattrs(n Node) []string
	// EachInode calls emit for every inode of the layer, until emit returns false.
	EachInode(emit func(Inode) bool)
	// Request reports whether an update was made for the kernel request with this ID, and returns the node that the
	// update created, or 0 if it created none.
	Request(id uint64) (made Node, ok bool)
	// Lookups returns the kernel's lookup count of an own node.
	Lookups(n Node) uint64
	// Counter returns the value of a counter, or 0 if it was never set.
	Counter(c state.Counter) uint64
}

// Tx is an update in progress. It reads entries as they were before the update. It reads inodes with the changes that
// this update has made so far.
type Tx struct {
	Reader
	l     *Layer
	batch state.Batch
	puts  []put
	drops []Node
	nodes []Node   // nodes reserved by NewNode, released if the update fails
	dead  []uint64 // contents files that this update makes dead

	request uint64 // kernel request for which the update is made; 0 if there is none
	// made is the node that the request created.
	made Node
	// latest is the latest ctime that PutTimes has stored, if that is later than all before.
	latest int64
}

// put is an inode that the update writes when it commits. The log record contains only the fields that differ from the
// field old, even if the inode was put several times.
type put struct {
	in, old Inode
	existed bool // whether the layer had the inode before the update
	logSize bool // whether to log the size even if the state has the same size, because the log may contain another size
	settled bool // whether the update clears the inode's dirty mark
}

// Update calls the function f and applies all changes that f requested on tx, atomically: the changes are made if and
// only if Update returns nil. The function must not block and must not call the layer. If the log has no space, Update
// frees some and calls f a second time with a new Tx. Update waits for the layer's lock, and for the disk if the log
// must grow. It returns an error of f unchanged, and EROFS for a read-only layer.
func (l *Layer) Update(f func(tx *Tx) error) error {
	return l.withRoom(func() error { return l.tryUpdate(f) })
}

// tryUpdate does the same as Update, but without a second attempt on a full disk.
func (l *Layer) tryUpdate(f func(tx *Tx) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.update(f)
}

// update does the same as tryUpdate. The caller holds l.mu.
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

// reset empties the layer's Tx, which is reused for the next update.
func (tx *Tx) reset(l *Layer) {
	tx.l, tx.Reader = l, l.state
	tx.batch.Reset()
	tx.puts, tx.drops, tx.nodes, tx.dead = tx.puts[:0], tx.drops[:0], tx.nodes[:0], tx.dead[:0]
	tx.request, tx.made, tx.latest = 0, 0, 0
}

// commit appends the changes to the log, then applies them to the state. If the process dies between these steps, the
// next Open replays the record, so the change is made although the kernel received no reply. If the log returns an
// error, both the log and the state are unchanged.
func (tx *Tx) commit() error {
	l := tx.l
	tx.encode()
	if tx.batch.Puts() == 0 {
		return nil
	}
	if err := l.wal.Append(tx.batch.Bytes(), time.Now().UnixNano()); err != nil {
		return fmt.Errorf("append changes to the overlay's log: %w", err)
	}
	if err := l.state.Apply(tx.batch.Bytes()); err != nil {
		// After an error the log contains a change that the state does not have. Only a bug can cause this.
		l.broken = fmt.Errorf("apply change to the overlay: %w: %w", err, ErrDamaged)
		return l.broken
	}
	l.contents.copying.follow(tx.batch.Bytes())
	if l.wal.Size() > longLog {
		l.janitor.poke() // the janitor decides whether the log is compacted
	}
	for _, p := range tx.puts {
		if p.settled {
			l.files.unmark(p.in.Node)
		}
		// A node that is created without a name (O_TMPFILE) has no lookups until the reply is sent, so a node is dropped only
		// if it existed before this update.
		if p.existed && p.in.Nlink == 0 && p.in.Node.Own() && l.state.Lookups(p.in.Node) == 0 {
			l.forsaken = append(l.forsaken, p.in.Node)
			l.janitor.poke()
		}
	}
	if len(tx.dead) > 0 {
		l.dead = append(l.dead, tx.dead...)
		l.janitor.poke()
	}
	return nil
}

// encode adds the collected inodes, dropped nodes and dead contents files to the batch. Sealed contents files do not
// become dead, because others may use them.
func (tx *Tx) encode() {
	tx.dead = slices.DeleteFunc(tx.dead, tx.l.contents.isSealed)
	for i := range tx.puts {
		p := &tx.puts[i]
		if !p.existed {
			tx.batch.PutInode(&p.in, nil)
			continue
		}
		if p.logSize {
			p.old.Size = ^p.in.Size
		}
		if p.old.Flags&^p.in.Flags&state.FlagWritten != 0 {
			// change both times, so that both are logged: the log has older times as long as the flag is set
			p.old.Mtime, p.old.Ctime = ^p.in.Mtime, ^p.in.Ctime
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
	if tx.latest > 0 {
		tx.batch.SetCounter(counterTimes, uint64(tx.latest))
	}
	if tx.request != 0 && tx.batch.Puts() > 0 {
		tx.batch.Request(tx.request, tx.made)
	}
}

// Now returns the time in nanoseconds since 1970 on the clock that the kernel uses for timestamps.
func Now() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts) != nil {
		return time.Now().UnixNano()
	}
	return ts.Nano()
}

// NewNode reserves a number for a new node, whose inode the same update must put. If the update fails, the number
// becomes free again. NewNode returns state.ErrFull if no number is left.
func (tx *Tx) NewNode() (Node, error) {
	n, err := tx.l.state.NewNode()
	if err == nil {
		tx.nodes = append(tx.nodes, n)
	}
	return n, err
}

// Inode returns a node's inode with the changes that this update has made so far, and false if the layer has none.
func (tx *Tx) Inode(n Node) (Inode, bool) {
	for i := range tx.puts {
		if tx.puts[i].in.Node == n {
			return tx.puts[i].in, true
		}
	}
	return tx.l.state.Inode(n)
}

// PutInode sets a node's inode. It ignores in.Content, in.Flags and, for an existing inode, in.Size, which only the
// methods of File change. A node whose Nlink becomes 0 exists until the kernel has forgotten it.
func (tx *Tx) PutInode(in Inode) {
	cur, ok := tx.Inode(in.Node)
	if !ok {
		in.Content, in.Flags = 0, 0
		tx.put(in)
		return
	}
	in.Size, in.Content, in.Flags = cur.Size, cur.Content, cur.Flags
	if in != cur {
		in.Flags &^= state.FlagTimes
	}
	if old := cur; in.Flags&state.FlagCarried != 0 {
		if old.Atime = in.Atime; in != old {
			in.Flags &^= state.FlagCarried
		}
	}
	if in.Flags&state.FlagDirty != 0 && in.Mtime != cur.Mtime {
		// After a kill, recovery gives a dirty inode the mtime of its contents file if that mtime is later. The time that is
		// set now must have precedence, so mark the inode clean.
		in.Flags &^= state.FlagDirty | state.FlagWritten
		p := tx.put(in)
		p.logSize, p.settled = true, true
		return
	}
	tx.put(in)
}

// PutTimes sets the times of a base node. If the layer has no inode for the node, in must be that of the base tree
// except for its times, and Changed does not count the file until an update or a write changes it.
func (tx *Tx) PutTimes(in Inode) {
	if _, ok := tx.Inode(in.Node); ok {
		tx.PutInode(in)
		return
	}
	in.Content, in.Flags = 0, state.FlagTimes
	if in.Ctime > max(tx.latest, int64(tx.Counter(counterTimes))) {
		tx.latest = in.Ctime
	}
	tx.put(in)
}

// SetBaseTime sets the result of BaseTime, in nanoseconds since 1970. After a power failure or a repair, the layer has
// either this time and all that the updates before have stored, or not this time.
func (tx *Tx) SetBaseTime(at int64) { tx.batch.SetCounter(counterBaseTime, uint64(at)) }

// BaseTime returns the time that Tx.SetBaseTime has set, and false if there is none.
func BaseTime(r Reader) (at int64, ok bool) {
	at = int64(r.Counter(counterBaseTime))
	return at, at != 0
}

// put adds an inode to the inodes that commit writes. It replaces an earlier put of the same node.
func (tx *Tx) put(in Inode) *put {
	for i := range tx.puts {
		if tx.puts[i].in.Node == in.Node {
			tx.puts[i].in = in
			return &tx.puts[i]
		}
	}
	old, existed := tx.l.state.Inode(in.Node)
	tx.puts = append(tx.puts, put{in: in, old: old, existed: existed})
	return &tx.puts[len(tx.puts)-1]
}

// SetEntry makes name in dir an entry for n, and replaces an earlier entry for the name. The caller is responsible for
// link counts and for the Parent of n.
func (tx *Tx) SetEntry(dir Node, name string, n Node) { tx.batch.SetEntry(dir, name, n) }

// Hide makes name in dir absent, whether or not the base tree has it. The hidden entry exists until ClearEntry or
// SetEntry replaces it or the directory is dropped.
func (tx *Tx) Hide(dir Node, name string) { tx.batch.Hide(dir, name) }

// ClearEntry removes the layer's entry for name in dir, so that the base tree's entry is used.
func (tx *Tx) ClearEntry(dir Node, name string) { tx.batch.ClearEntry(dir, name) }

// Request records the kernel request for which the update is made, and the node that the request creates, or 0 if it
// creates none. The request is stored only if the update changes something, because a request that changes nothing can
// be repeated.
func (tx *Tx) Request(id uint64, made Node) { tx.request, tx.made = id, made }

// Uncount excludes a new file of the layer from the results of Changed and Stats. Only one file can be excluded.
func (tx *Tx) Uncount(n Node) { tx.batch.SetCounter(counterUncounted, uint64(n)) }

// SetTarget sets the target of a symbolic link.
func (tx *Tx) SetTarget(n Node, target string) { tx.batch.SetTarget(n, target) }

// SetXattr sets an extended attribute.
func (tx *Tx) SetXattr(n Node, name string, value []byte) { tx.batch.SetXattr(n, name, value) }

// RemoveXattr removes an extended attribute.
func (tx *Tx) RemoveXattr(n Node, name string) { tx.batch.RemoveXattr(n, name) }

// drop removes a node, and makes its contents file dead if it has one.
func (tx *Tx) drop(in Inode) {
	tx.drops = append(tx.drops, in.Node)
	if in.Content != 0 {
		tx.dead = append(tx.dead, in.Content)
	}
}

// errGone returns the error for a node that the layer does not have. The error wraps fs.ErrNotExist and ESTALE.
func errGone(n Node) error {
	return fmt.Errorf("find node %d in the overlay: %w: %w", n, fs.ErrNotExist, syscall.ESTALE)
}
