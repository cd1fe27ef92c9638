package overlay

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/worktree/overlay/state"
)

// Sealed contents files do not change any more, so that other overlays can use them. A Sealing seals all contents files
// that exist at one moment, and moves their directory to a share. The log has a segment for them. The layer continues
// to read the files in the share, and never removes them. A change of a file with sealed contents first gives
// the file other contents: an empty contents file if it is truncated to zero, and otherwise a copy.
//
// New contents files get numbers that are not below the bound of the last segment, and are created in another
// directory, whose name is "contents-" and the ID of the share. The segment is on disk before the directory is moved.
// Therefore sealed files are in the share or, if the process has died in between, still in their former directory.

// ErrSealed means that the contents of a file are sealed: the caller must call Separate before it changes them. Inside
// of this package it also means that a contents file cannot be created, because its number was sealed.
var ErrSealed = errors.New("contents are sealed")

// layout states where the contents files are. A layout does not change.
type layout struct {
	low      uint64 // lowest number that is not sealed
	own      string // directory of the contents files that are not sealed
	segments []sealedFiles
}

// sealedFiles are the contents files of a segment.
type sealedFiles struct {
	bound uint64 // as in state.Segment
	// dirs are the directories to search: the one in the share, the former one, and the one in the share again, because
	// a Sealing may move the files during the search.
	dirs [3]string
}

// setSegments replaces the layout by that for the given segments.
func (c *contents) setSegments(segments []state.Segment) {
	a := &layout{own: filepath.Join(c.overlay, "contents")}
	for _, g := range segments {
		moved := filepath.Join(c.shares, g.Share, "contents")
		a.segments = append(a.segments, sealedFiles{g.Bound, [3]string{moved, a.own, moved}})
		a.low, a.own = g.Bound, c.ownDir(g.Share)
	}
	c.layout.Store(a)
}

// ownDir returns the directory for new contents files after a Sealing has moved the former one to a share.
func (c *contents) ownDir(share string) string { return filepath.Join(c.overlay, "contents-"+share) }

// isSealed reports whether a contents file is sealed.
func (a *layout) isSealed(number uint64) bool { return number < a.low }

// isSealed reports whether a contents file is sealed at present.
func (c *contents) isSealed(number uint64) bool { return c.layout.Load().isSealed(number) }

// dirs returns the directories in which a contents file may be, in the order of the search.
func (a *layout) dirs(number uint64) []string {
	if !a.isSealed(number) {
		return []string{a.own}
	}
	i, _ := slices.BinarySearchFunc(a.segments, number+1,
		func(s sealedFiles, n uint64) int { return cmp.Compare(s.bound, n) })
	return a.segments[i].dirs[:]
}

// find calls do with each directory in which a contents file may be, until do returns another error than
// fs.ErrNotExist, and returns the last result of do.
func (c *contents) find(number uint64, do func(dir string) error) error {
	for {
		a, err := c.layout.Load(), error(nil)
		for _, dir := range a.dirs(number) {
			if err = do(dir); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if c.layout.Load() == a {
			return err
		}
	}
}

// removeStrays removes the directories for new contents files that were created for a seal whose record the log does
// not have: the process died before the moment, or a power cut has lost the record. It moves a directory with files to
// lost+found.
func (c *contents) removeStrays() error {
	entries, err := c.fs.ReadDir(c.overlay)
	if err != nil {
		return err
	}
	a := c.layout.Load()
	var errs []error
	for _, e := range entries {
		dir := filepath.Join(c.overlay, e.Name())
		if !strings.HasPrefix(dir, c.ownDir("")) || dir == a.own ||
			slices.ContainsFunc(a.segments, func(s sealedFiles) bool { return s.dirs[1] == dir }) {
			continue
		}
		err := c.fs.Remove(dir)
		if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST) {
			if err = c.fs.Mkdir(c.lost, 0o700); err == nil || errors.Is(err, fs.ErrExist) {
				err = c.fs.Rename(dir, filepath.Join(c.lost, e.Name()))
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// syncDirs syncs the directories that contain the subdirectories of contents files.
func (c *contents) syncDirs() error {
	a := c.layout.Load()
	for _, s := range a.segments {
		for _, dir := range s.dirs[:2] { // the third one is the first one
			if err := c.fs.SyncDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return c.fs.SyncDir(a.own)
}

// Separate gives the file contents of its own, if its contents are sealed: a copy of their first bytes, at most as many
// as the parameter most states. The function note must call its argument, which makes the change, and return its
// result. Separate calls note after it has copied the bytes, and copies without holding the locks of the file, because
// sealed contents do not change. Of several calls at the same time, only the first one copies.
func (f *File) Separate(most int64, note func(change func() error) error) error {
	f.separating.Lock()
	defer f.separating.Unlock()
	for {
		if err := f.separate(most, note); !errors.Is(err, ErrSealed) {
			return err
		}
	}
}

// separate does the work of Separate, and returns ErrSealed if the copy was sealed before the file had it. If the file
// received other contents during the copy, separate discards the copy and returns nil. The copy is synced before the
// log names it: the contents may have been synced by an fsync, and must not be lost in a power cut.
func (f *File) separate(most int64, note func(change func() error) error) error {
	l := f.l
	if err := f.rlock(); err != nil {
		return err
	}
	sealed, size, place := f.number, min(most, f.size.Load()), f.place
	f.mu.RUnlock()
	if place != inContent || !l.contents.isSealed(sealed) {
		return nil
	}
	from, err := l.contents.open(sealed)
	if err != nil && f.uses(sealed) {
		return err
	}
	if err != nil { // the file has other contents already, so that Reclaim could remove the sealed ones
		return nil
	}
	defer from.Close()
	number, data, err := l.create(true)
	if err != nil {
		return err
	}
	err = l.withRoom(func() error {
		n, err := data.CopyFrom(0, from.Own(), 0, size)
		if err == nil && n < size {
			err = io.ErrUnexpectedEOF
		}
		return err
	})
	if err == nil {
		err = data.DataSync()
	}
	if err == nil {
		err = l.contents.syncEntry(number)
		if errors.Is(err, fs.ErrNotExist) && l.contents.isSealed(number) { // Reclaim has removed the copy
			err = ErrSealed
		}
	}
	won := false
	if err == nil {
		err = note(func() (err error) { won, err = f.replaceSealed(sealed, number, data, size); return err })
	}
	if !won {
		_ = data.Close()
		l.discard(number)
	}
	return err
}

// uses reports whether the file has this contents file.
func (f *File) uses(number uint64) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.place == inContent && f.number == number
}

// replaceSealed makes the contents file number, which is a copy of a sealed one, the contents of the file, and returns
// true. It returns false if the file does not have the sealed contents any more.
func (f *File) replaceSealed(sealed, number uint64, data disk.File, size int64) (bool, error) {
	f.l.cut.RLock() // the copy may be shorter, so this is a change of the contents
	defer f.l.cut.RUnlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.place != inContent || f.number != sealed {
		return false, nil
	}
	err := f.l.Update(func(tx *Tx) error {
		if err := f.adopted(tx, number, size, 0); err != nil {
			return err
		}
		in, _ := tx.Inode(f.node)
		tx.put(in).logSize = true // the log may have another size as long as an inode is dirty
		return nil
	})
	if err != nil {
		return false, err
	}
	f.install(number, data, size, false)
	f.synced.Store(true)
	f.writes.Store(f.l.clock())
	return true, nil
}
