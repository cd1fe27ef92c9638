package overlay

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/worktree/overlay/state"
)

// Segment is a range of sealed contents files, with the share that has them.
type Segment = state.Segment

// Sealing is a seal in progress. It begins with BeginSeal. Its moment is the one of Freeze, after which Publish
// moves the contents files to the share. Close ends it in any case. A layer has one Sealing at a time.
//
// To show the names at the moment without stopping the writers while they are copied, the Sealing has a copy of the
// state, to which the layer applies all changes until the moment, as it appends them to both logs during a compaction.
type Sealing struct {
	l        *Layer
	id       string
	names    *state.Table
	listed   bool      // whether the share is in the list of shares
	moment   bool      // whether the moment has come
	sealed   bool      // whether a segment was added at the moment
	segments []Segment // segments at the moment
	err      error     // why the seal has failed; protected by l.mu until the moment
}

// BeginSeal prepares a seal, whose contents files will be moved to the share with this ID. state.ValidShare must be
// true for the ID, and the log must not name the share yet. Writers continue.
func BeginSeal(l *Layer, id string) (*Sealing, error) {
	switch {
	case l.o.ReadOnly:
		return nil, syscall.EROFS
	case l.o.Shares == "":
		return nil, ErrShares
	case !state.ValidShare(id):
		return nil, fmt.Errorf("seal contents for share %q: %w", id, syscall.EINVAL)
	}
	l.contents.sealing.Lock()
	s := &Sealing{l: l, id: id, names: state.NewSeeded(l.o.Seed)}
	err := s.prepare()
	if err == nil {
		err = s.copyNames()
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// sealRoom is the space in the log that a seal needs at most, unless contents files become dead during the seal.
const sealRoom = 4096

// prepare does the work that can take long or fail, before the moment: it lists the share, and creates the directories.
func (s *Sealing) prepare() error {
	l := s.l
	l.mu.RLock()
	listed := sharesOf(l.state.Segments)
	l.mu.RUnlock()
	if slices.Contains(listed, s.id) {
		return fmt.Errorf("seal contents for share %s: %w", s.id, fs.ErrExist)
	}
	listed = append(listed, s.id)
	slices.Sort(listed)
	if err := writeList(l.o.FS, l.dir, listed); err != nil {
		return err
	}
	s.listed = true
	// Without this call, the files that no inode names any more would be moved, too.
	if err := l.removeDead(); err != nil {
		return err
	}
	for _, dir := range []string{l.contents.ownDir(s.id), s.share()} {
		if err := l.o.FS.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := l.o.FS.SyncDir(filepath.Dir(dir)); err != nil {
			return err
		}
	}
	return l.withRoom(func() error { return l.wal.Reserve(sealRoom) })
}

// share returns the directory of the share.
func (s *Sealing) share() string { return filepath.Join(s.l.o.Shares, s.id) }

// copyNames copies the state to s.names, one slice after the other. No change is made between the dump of a slice and
// its application to the copy, because the older slice would undo the change there.
func (s *Sealing) copyNames() error {
	l := s.l
	l.mu.Lock()
	l.contents.copying = s
	l.mu.Unlock()
	var b state.Batch
	var at state.Cursor
	for done := false; !done; {
		l.mu.RLock()
		b.Reset()
		at, done = l.state.Dump(at, slice, &b)
		err := s.names.Replay(b.Bytes())
		l.mu.RUnlock()
		if err != nil {
			return fmt.Errorf("copy the names of the overlay: %w", err)
		}
	}
	return nil
}

// follow applies a batch to the copy of the state, after it was applied to the state. s is nil if there is no seal
// whose moment has not come yet. The caller holds l.mu.
func (s *Sealing) follow(batch []byte) {
	if s == nil {
		return
	}
	if err := s.names.Replay(batch); err != nil {
		s.l.contents.copying, s.err = nil, fmt.Errorf("copy the names of the overlay: %w", err)
	}
}

// Freeze does the same as Layer.Freeze, and seals all contents files at the moment at which it calls f, if f returns
// true. If they cannot be sealed, Publish returns the error. If f returns false, nothing is sealed, and Freeze may be
// called again. Readers continue while f runs.
func (s *Sealing) Freeze(f func(r Reader) bool) (paused time.Duration) {
	l, start := s.l, time.Now()
	l.cut.Lock()
	defer l.cut.Unlock()
	l.mu.Reserve()
	defer l.mu.Release()
	if f(l.state) {
		l.mu.Upgrade()
		defer l.mu.Downgrade()
		if s.err == nil {
			s.seal()
		}
		l.contents.copying, s.moment = nil, true
		s.segments = slices.Clone(l.state.Segments)
	}
	return time.Since(start)
}

// seal adds a segment for all contents files, unless all of them are sealed already. It sets s.err if that fails. The
// caller holds l.cut and l.mu exclusively.
func (s *Sealing) seal() {
	l := s.l
	low := l.contents.layout.Load().low
	if l.next <= max(low, 1) {
		return
	}
	// A subdirectory has the numbers of one segment only.
	bound := max((l.next+perDirectory-1)/perDirectory*perDirectory, low+perDirectory)
	// The log is raised only if the record of the segment then fits, because a log that is raised for nothing is useless
	// for an older program. Others may have used what prepare has reserved.
	if s.err = l.wal.Reserve(sealRoom); s.err == nil {
		s.err = l.wal.Raise()
	}
	if s.err != nil {
		return
	}
	s.err = l.update(func(tx *Tx) error { tx.seal(Segment{Share: s.id, Bound: bound}); return nil })
	if s.err != nil {
		return
	}
	s.sealed = true
	l.next = bound
	l.contents.setSegments(l.state.Segments)
	l.dead = slices.DeleteFunc(l.dead, l.contents.isSealed)
	l.pinned = slices.DeleteFunc(l.pinned, l.contents.isSealed)
}

// seal adds a segment, for contents files that exist already. The sealed ones are no longer dead.
func (tx *Tx) seal(g Segment) {
	t := tx.l.state
	tx.batch.Seal(g)
	tx.batch.SetCounter(counterContents, max(g.Bound, t.Counter(counterContents)))
	t.EachDead(func(number uint64) bool {
		if number < g.Bound {
			tx.batch.ContentGone(number)
		}
		return true
	})
}

// errNoMoment means that Publish was called before the moment of the seal.
var errNoMoment = errors.New("contents were not sealed yet")

// Publish makes the sealed contents files available to other overlays, after the moment. If it returns an error, either
// no file was sealed, or files were sealed but not moved. In both cases the layer works as before.
func (s *Sealing) Publish() error {
	switch {
	case s.err != nil:
		return s.err
	case !s.moment:
		return errNoMoment
	}
	// After a power cut, files are searched in a share only if the log has the segment.
	if err := s.l.Sync(); err != nil {
		return err
	}
	for _, files := range s.l.contents.layout.Load().segments {
		if err := s.l.contents.move(files); err != nil {
			return err
		}
	}
	return nil
}

// move moves sealed contents files to their share, unless this process has moved them already. A seal that has failed
// may have left them in their former directory, or may have moved them without a sync.
func (c *contents) move(files sealedFiles) error {
	moved, former := files.dirs[0], files.dirs[1]
	if _, ok := c.moved[moved]; ok {
		return nil
	}
	share := filepath.Dir(moved)
	_, err := c.fs.Stat(moved)
	if errors.Is(err, fs.ErrNotExist) {
		err = c.fs.Mkdir(share, 0o700) // it was removed if it was empty after the seal that has failed
		if err == nil || errors.Is(err, fs.ErrExist) {
			err = c.fs.SyncDir(former)
		}
		if err == nil {
			err = c.fs.Rename(former, moved)
		}
	}
	for _, dir := range []string{share, c.overlay, c.shares} {
		if err == nil {
			err = c.fs.SyncDir(dir)
		}
	}
	if err == nil {
		c.moved[moved] = struct{}{}
	}
	return err
}

// Settle writes the sealed contents of unsettled inodes to disk, after Publish was called. Another overlay in which
// they replace contents of its base tree can then trust them.
func (s *Sealing) Settle(unsettled []Inode) error {
	c := s.l.contents
	for _, in := range unsettled {
		s.l.mu.RLock()
		err := s.l.faults[in.Node] // after an error, another sync would seem to succeed (see distrust)
		s.l.mu.RUnlock()
		if err != nil {
			return err
		}
		f, err := c.open(in.Content)
		if err != nil {
			return err
		}
		if err := errors.Join(f.DataSync(), f.Close(), c.syncEntry(in.Content)); err != nil {
			return err
		}
	}
	return nil
}

// Names returns the state at the moment, until Close is called.
func (s *Sealing) Names() Reader { return s.names }

// Inodes returns the number of inodes in Names.
func (s *Sealing) Inodes() int64 { return s.names.Totals().Inodes }

// Segments returns the segments of all contents files that the inodes in Names name. Another overlay that is opened
// with them can use these files, after Publish was called.
func (s *Sealing) Segments() []Segment { return s.segments }

// Close ends the seal, at any time.
func (s *Sealing) Close() {
	l := s.l
	l.mu.Lock()
	l.contents.copying = nil
	used := sharesOf(l.state.Segments)
	l.mu.Unlock()
	if s.listed && !s.sealed { // an empty directory, and a share too many in the list, do no harm
		_ = l.o.FS.Remove(l.contents.ownDir(s.id))
		_ = writeList(l.o.FS, l.dir, used)
	}
	s.names.Close()
	l.contents.sealing.Unlock()
}
