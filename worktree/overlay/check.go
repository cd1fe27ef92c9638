package overlay

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/worktree/overlay/state"
	"github.com/artifactfs/artifactfs/worktree/overlay/wal"
)

// Report is the result of Check.
type Report struct {
	Records  int64 // number of records in the log
	Findings []Finding
}

// Finding is one inconsistency that Check found in an overlay.
type Finding struct {
	What     string // description for the user
	Repaired bool   // whether Check has repaired the inconsistency
}

// add appends a Finding to the report; format and args are those of fmt.Sprintf.
func (r *Report) add(repaired bool, format string, args ...any) {
	r.Findings = append(r.Findings, Finding{fmt.Sprintf(format, args...), repaired})
}

// Check verifies an overlay that no process has open: its log, the consistency of its names and inodes, and its
// contents files. If repair is set, Check repairs the inconsistencies that it can repair. It never deletes bytes: it
// moves a damaged log, and contents files without an owner, to lost+found. It returns ErrInUse if another process has
// the overlay open. shares is the directory of the shares, as in Options.
func Check(dir string, repair bool, shares string) (Report, error) {
	return check(dir, repair, Options{Shares: shares})
}

// check does the work of Check with the options o, which only tests set.
func check(dir string, repair bool, o Options) (Report, error) {
	o.defaults()
	var r Report
	if _, err := o.FS.Stat(filepath.Join(dir, "log")); err != nil {
		if lost, _ := lostSegments(dir, o, nil); len(lost) == 0 {
			return r, fmt.Errorf("check overlay: %w", err)
		}
		if !repair {
			r.add(false, "log is missing")
		}
	}
	if unlock, err := disk.TryLock(filepath.Join(dir, "lock")); errors.Is(err, disk.ErrLocked) {
		return r, fmt.Errorf("check overlay %s: %w", dir, ErrInUse)
	} else if err == nil {
		unlock() // release the lock, because Open takes it again to repair the overlay
	}
	if repair {
		if err := mendLog(dir, o, &r); err != nil {
			return r, fmt.Errorf("repair overlay %s: %w", dir, err)
		}
	}
	o.ReadOnly, o.still = !repair, true
	l, rec, err := Open(dir, o)
	if err != nil {
		return r, err
	}
	r.Records = rec.Records
	for _, p := range rec.Problems {
		r.add(false, "%s", p)
	}
	err = errors.Join(l.checkNames(&r), l.checkContents(&r))
	return r, errors.Join(err, l.Close())
}

// mendLog replaces a damaged or missing log by a new one that has the records before the damage, and the segments that
// the log has lost. It copies the old log to lost+found before it renames the new one, so that a log exists after a
// crash at any moment.
func mendLog(dir string, o Options, r *Report) error {
	path := filepath.Join(dir, "log")
	table := state.New()
	defer table.Close()
	options := wal.Options{
		FS: o.FS, BootID: o.boot, Salvage: true,
		Replay: func(record []byte, _ int64) error { return table.Apply(record) },
	}
	old, rec, err := wal.Open(path, options)
	if err != nil {
		return blame(err)
	}
	if err := old.Close(); err != nil {
		return err
	}
	// Without this, the files in shares that the damaged part of the log has named would seem to be missing.
	lost, err := lostSegments(dir, o, table.Segments)
	if err != nil && rec.Damage == nil { // the list of shares is replaced by Open
		return nil
	}
	if err != nil || rec.Damage == nil && len(lost) == 0 {
		return err
	}
	var b state.Batch
	dropped, err := droppedSegments(dir, o, table.Segments, lost)
	for _, id := range dropped {
		b.Unseal(id)
	}
	if err == nil && len(dropped) > 0 {
		err = table.Apply(b.Bytes())
	}
	if err != nil {
		return err
	}
	fresh := path + ".mended"
	// Remove a file with this name, which an interrupted repair may have left.
	if err := o.FS.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	mended, _, err := wal.Open(fresh, wal.Options{FS: o.FS, BootID: o.boot,
		Replay: func([]byte, int64) error { return nil }})
	if err == nil && len(table.Segments)+len(lost) > 0 {
		err = mended.Raise()
	}
	if err != nil {
		return err
	}
	var at state.Cursor
	for done := false; !done && err == nil; {
		b.Reset()
		if at, done = table.Dump(at, slice, &b); b.Puts() > 0 {
			err = mended.Append(b.Bytes(), time.Now().UnixNano())
		}
	}
	b.Reset()
	for _, g := range lost {
		b.Seal(g)
		b.SetCounter(counterContents, max(g.Bound, table.Counter(counterContents)))
	}
	if b.Puts() > 0 && err == nil {
		err = mended.Append(b.Bytes(), time.Now().UnixNano())
	}
	if err := errors.Join(err, mended.Close()); err != nil {
		return err
	}
	saved := filepath.Join(dir, "lost+found", fmt.Sprintf("log-damaged-%d", time.Now().Unix()))
	if !rec.Fresh {
		if err := copyFile(o.FS, path, saved); err != nil {
			return err
		}
	}
	if err := errors.Join(o.FS.Rename(fresh, path), o.FS.SyncDir(dir)); err != nil {
		return err
	}
	switch {
	case rec.Fresh:
		r.add(true, "log is missing; the new one names share %s", strings.Join(sharesOf(lost), ", "))
	case rec.Damage == nil:
		r.add(true, "log does not name share %s; the old log is kept in %s", strings.Join(sharesOf(lost), ", "), saved)
	default:
		r.add(true, "%v; the log is kept in %s", rec.Damage, saved)
	}
	if len(dropped) > 0 {
		r.add(true, "log names share %s, which the session had ceased to use", strings.Join(dropped, ", "))
	}
	return nil
}

// copyFile copies a file, and syncs the copy and the copy's directory, which it creates if necessary.
func copyFile(on disk.FS, from, to string) error {
	if err := on.Mkdir(filepath.Dir(to), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	src, err := on.OpenFile(from, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer src.Close()
	info, err := src.Stat()
	if err != nil {
		return err
	}
	dst, err := on.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = dst.CopyFrom(0, src.Own(), 0, info.Size())
	return errors.Join(err, dst.Sync(), dst.Close(), on.SyncDir(filepath.Dir(to)))
}

// census holds properties of inodes that are computed from the directory entries.
type census struct {
	names map[Node]int // number of names of each own node
	// number of subdirectories in each directory, including subdirectories that were moved from the base tree
	subdirs map[Node]int
	parent  map[Node]Node // parent of each directory, according to the directory's entry
}

// checkNames compares directory entries with inodes. It skips base nodes, because the layer does not know the entries
// of the base tree. If repairs are requested, it hides entries without an inode, and corrects link counts and parents.
func (l *Layer) checkNames(r *Report) error {
	type entry struct {
		dir  Node
		name string
	}
	var stray []entry
	c := census{names: map[Node]int{}, subdirs: map[Node]int{}, parent: map[Node]Node{}}
	t := l.state
	t.EachDir(func(dir Node) bool {
		if _, ok := t.Inode(dir); !ok && dir.Own() {
			r.add(false, "directory %d has entries but no inode", dir)
		}
		t.ReadDir(dir, 0, func(_ uint64, name string, n Node, _ Presence) bool {
			if n == 0 {
				return true
			}
			in, ok := t.Inode(n)
			if !ok {
				if n.Own() {
					stray = append(stray, entry{dir, strings.Clone(name)})
				}
				return true
			}
			c.names[n]++
			if in.Mode&syscall.S_IFMT == syscall.S_IFDIR {
				c.subdirs[dir]++
				c.parent[n] = dir
			}
			return true
		})
		return true
	})
	for _, e := range stray {
		r.add(!l.o.ReadOnly, "entry %q of directory %d refers to a missing inode", e.name, e.dir)
	}
	wrong := c.judge(t, r, !l.o.ReadOnly)
	if l.o.ReadOnly || len(stray)+len(wrong) == 0 {
		return nil
	}
	return l.Update(func(tx *Tx) error {
		for _, e := range stray {
			tx.Hide(e.dir, e.name)
		}
		tx.puts = append(tx.puts, wrong...)
		return nil
	})
}

// judge returns a put with the corrected inode for every own inode that contradicts the census. It adds a finding to r
// for each contradiction.
func (c *census) judge(t *state.Table, r *Report, repair bool) (wrong []put) {
	t.EachInode(func(in Inode) bool {
		if !in.Node.Own() {
			return true
		}
		old, isDir := in, in.Mode&syscall.S_IFMT == syscall.S_IFDIR
		switch names := c.names[in.Node]; {
		case isDir && names > 1:
			r.add(false, "directory %d has %d names", in.Node, names)
		case isDir && names == 1:
			if in.Nlink != uint32(2+c.subdirs[in.Node]) {
				in.Nlink = uint32(2 + c.subdirs[in.Node])
				r.add(repair, "directory %d has %d links, want %d", in.Node, old.Nlink, in.Nlink)
			}
			if in.Parent != c.parent[in.Node] {
				in.Parent = c.parent[in.Node]
				r.add(repair, "directory %d has parent %d, want %d", in.Node, old.Parent, in.Parent)
			}
		case !isDir && in.Nlink != uint32(names):
			in.Nlink = uint32(names)
			r.add(repair, "file %d has %d links, want %d", in.Node, old.Nlink, names)
		}
		if isDir && c.loops(in.Node) {
			r.add(false, "directory %d contains itself", in.Node)
		}
		if in != old {
			wrong = append(wrong, put{in: in, old: old, existed: true})
		}
		return true
	})
	return wrong
}

// loops reports whether the directory n is its own ancestor.
func (c *census) loops(n Node) bool {
	at, ok := c.parent[n]
	for steps := 0; ok && steps <= len(c.parent); steps++ {
		if at == n {
			return true
		}
		at, ok = c.parent[at]
	}
	return false
}

// checkContents checks that every contents file that an inode names exists, has the recorded size and has no second
// owner, and that every other contents file is recorded as dead. If repairs are requested, it corrects the inodes, and
// moves contents files without an owner to lost+found.
func (l *Layer) checkContents(r *Report) error {
	repair := !l.o.ReadOnly
	owned := map[uint64]Node{}
	var inodes []Inode
	l.state.EachInode(func(in Inode) bool {
		if in.Content != 0 {
			inodes = append(inodes, in)
		}
		return true
	})
	l.state.EachDead(func(number uint64) bool { owned[number] = 0; return true })
	for _, in := range inodes {
		if other, ok := owned[in.Content]; ok {
			r.add(false, "contents file %06x belongs to file %d and to file %d", in.Content, in.Node, other)
		}
		owned[in.Content] = in.Node
		old := in
		info, ok, err := l.contents.stat(in.Content)
		switch {
		case err != nil:
			return err
		case !ok && in.Node.Own():
			in.Content, in.Size, in.Flags = 0, 0, 0
			r.add(repair, "file %d: contents file %06x is missing; after the repair the file is empty", in.Node, old.Content)
		case !ok:
			in.Content, in.Size, in.Flags = 0, SizeOfBase, 0
			r.add(repair, "file %d: contents file %06x is missing; after the repair the file has the contents of the base tree",
				in.Node,
				old.Content)
		case info.Size() != in.Size && in.Flags&state.FlagDirty == 0:
			in.Size = info.Size()
			r.add(repair, "file %d has size %d, but its contents have %d bytes", in.Node, old.Size, in.Size)
		}
		if repair && in != old {
			if err := l.Update(func(tx *Tx) error { tx.put(in).logSize = true; return nil }); err != nil {
				return err
			}
		}
	}
	return l.contents.each(0, func(number uint64) error {
		if _, ok := owned[number]; ok {
			return nil
		}
		if repair {
			if err := l.contents.lose(number); err != nil {
				return err
			}
		}
		r.add(repair, "contents file %06x belongs to no file", number)
		return nil
	})
}
