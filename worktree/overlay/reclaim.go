package overlay

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// Sealed contents files that a layer replaces stay in their share, because other overlays may use them. Reclaim frees
// their disk space in two ways. A segment of which the layer uses no file any more is removed from the log and then
// from the list of shares, so that the share is removed once no overlay lists it. From a share that no other overlay
// lists, Reclaim removes the files that the layer does not use.
//
// A sealed file that a layer does not use is never used again: no inode, Kept record or pin begins to use a sealed
// file, except in a new overlay that adopts the files of a Sealing (Tx.Adopt). Therefore a file that was once found to
// be unused, while there was no Sealing and no other user, can be removed at any later time, without a lock.
//
// The last segment stays even if no file of it is used: its bound is the lowest number that is not sealed, and its ID
// is part of the name of the directory for new files.

// Sole returns those of the given shares that no other overlay lists or is about to list. Until release is called, no
// other overlay begins to use them.
type Sole func(ids []string) (sole []string, release func(), err error)

// Reclaimed is the result of Reclaim.
type Reclaimed struct {
	Files   int64    // number of removed contents files
	Bytes   int64    // disk space of these files in bytes
	Dropped []string // IDs of the shares that the overlay does not list any more
}

// Reclaim removes the sealed contents files that neither the layer nor another overlay uses, and drops the shares of
// which the layer uses no file. It does nothing while there is a Sealing, or if nothing has changed since the last
// call. If ctx ends, it returns the error of ctx, and the next call removes the other files.
func Reclaim(ctx context.Context, sole Sole, l *Layer) (r Reclaimed, err error) {
	if l.o.ReadOnly || l.contents.layout.Load().low == 0 || !l.contents.sealing.TryLock() {
		return r, nil
	}
	u := reclaiming{l: l}
	done, err := u.find(&r, sole)
	l.contents.sealing.Unlock()
	if len(u.dirs) == 0 {
		return r, wrapReclaim(l.dir, err)
	}
	// The records that released the files must be on disk first (see removeDead).
	syncErr := l.Sync()
	if syncErr == nil {
		err = errors.Join(err, u.remove(ctx, &r, false))
	}
	err = errors.Join(err, syncErr)
	if err == nil && done {
		l.contents.sealing.Lock()
		l.contents.reclaimed = u.sealedUse
		l.contents.sealing.Unlock()
	}
	return r, wrapReclaim(l.dir, err)
}

// wrapReclaim adds the directory of an overlay to an error.
func wrapReclaim(dir string, err error) error {
	if err != nil {
		err = fmt.Errorf("remove unused contents of overlay %s: %w", dir, err)
	}
	return err
}

// ReclaimClosed does the same as Reclaim for the overlay in the directory dir, which no process has open, but keeps the
// list of shares. If dry is true, it only returns what it would remove. It calls closed when the overlay may be opened
// again. If the overlay is in use, or needs a repair or a recovery after a power cut, ReclaimClosed does nothing.
func ReclaimClosed(dir string, o Options, sole Sole, closed func(), dry bool) (r Reclaimed, err error) {
	o.defaults()
	u, err := lookClosed(dir, o, &r, sole)
	closed()
	if u != nil {
		err = errors.Join(err, u.remove(context.Background(), &r, dry))
	}
	return r, wrapReclaim(dir, err)
}

// lookClosed returns the unused files of an overlay that is not open, or nil if there are none or they are not known.
func lookClosed(dir string, o Options, r *Reclaimed, sole Sole) (*reclaiming, error) {
	if ids, err := listedShares(o.FS, dir); err != nil || len(ids) == 0 {
		return nil, err
	}
	unlock, err := disk.TryLock(filepath.Join(dir, "lock"))
	if errors.Is(err, disk.ErrLocked) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer unlock()
	o.ReadOnly, o.still = true, true
	l, rec, err := Open(dir, o)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	if rec.Start == PowerLoss || rec.Cut > 0 || len(rec.Problems) > 0 {
		return nil, nil
	}
	// A process that was killed may not have synced its last records, and the data that they refer to.
	if err := l.beforeSync(); err != nil {
		return nil, err
	}
	log, err := o.FS.OpenFile(filepath.Join(dir, "log"), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	// The directory, too: that process may have replaced the log.
	if err = errors.Join(log.Sync(), log.Close(), o.FS.SyncDir(dir)); err != nil {
		return nil, err
	}
	u := &reclaiming{l: l}
	_, err = u.find(r, sole)
	return u, err
}

// sealedUse is the number of sealed files in use, with the bound of the last segment. With the same bound, the files in
// use only become fewer, so that with the same number they are the same.
type sealedUse struct {
	low  uint64
	used int
}

// reclaiming is a call of Reclaim or ReclaimClosed in progress.
type reclaiming struct {
	l *Layer
	sealedUse
	numbers []uint64 // numbers of the sealed files in use, sorted
	dirs    []string // directories of shares from which other files can be removed
}

// find drops the segments that are not used, unless the layer is open for reading only, and finds the directories in
// which unused files may be removed. done reports whether these are all directories. The caller holds contents.sealing,
// or no Sealing is possible.
func (u *reclaiming) find(r *Reclaimed, sole Sole) (done bool, err error) {
	l := u.l
	u.count()
	if u.sealedUse == l.contents.reclaimed {
		return true, nil
	}
	a := l.contents.layout.Load()
	if !l.o.ReadOnly {
		err = u.drop(r) // on a full disk, the log or the list may have no room, but files can be removed
	}
	done = err == nil
	byID := map[string]string{}
	var ids []string
	for _, s := range a.segments {
		switch ok, statErr := u.moved(s); {
		case !ok: // a seal has failed; the next one moves the files
			done, err = false, errors.Join(err, statErr)
		default:
			if id := filepath.Base(filepath.Dir(s.dirs[0])); !slices.Contains(r.Dropped, id) {
				ids, byID[id] = append(ids, id), s.dirs[0]
			}
		}
	}
	if len(ids) == 0 {
		return done, err
	}
	mine, release, soleErr := sole(ids)
	if soleErr != nil {
		return false, errors.Join(err, soleErr)
	}
	release() // the other users that there can be from now on use files that this layer uses now
	for _, id := range mine {
		u.dirs = append(u.dirs, byID[id])
	}
	return done && len(mine) == len(ids), err
}

// count finds the sealed files in use. An inode may be released to a Kept record, and both to a pin, but not the other
// way round, so the order of the searches matters.
func (u *reclaiming) count() {
	l, low := u.l, u.l.contents.layout.Load().low
	add := func(number uint64) {
		if number != 0 && number < low {
			u.numbers = append(u.numbers, number)
		}
	}
	l.View(func(r Reader) {
		r.EachInode(func(in Inode) bool { add(in.Content); return true })
		for _, k := range l.state.Kept() {
			add(k.Content)
		}
	})
	for _, number := range l.pins.numbers() {
		add(number)
	}
	for _, number := range l.files.numbers() {
		add(number)
	}
	slices.Sort(u.numbers)
	u.numbers = slices.Compact(u.numbers)
	u.sealedUse = sealedUse{low, len(u.numbers)}
}

// uses reports whether a number from first to the one before bound is in use.
func (u *reclaiming) uses(first, bound uint64) bool {
	i, _ := slices.BinarySearch(u.numbers, first)
	return i < len(u.numbers) && u.numbers[i] < bound
}

// moved reports whether the files of a segment are in its share.
func (u *reclaiming) moved(s sealedFiles) (bool, error) {
	return exists(u.l.contents.fs, s.dirs[0])
}

// drop removes the segments without files in use from the log and then from the list of shares, except the last one,
// and those whose successor is not moved yet: the files of the successor are in a directory whose name has the ID. The
// caller holds contents.sealing, so that the layout and the list change only here.
func (u *reclaiming) drop(r *Reclaimed) error {
	l := u.l
	segments := l.contents.layout.Load().segments
	var ids []string
	first := uint64(1)
	for i, s := range segments[:len(segments)-1] {
		id := filepath.Base(filepath.Dir(s.dirs[0]))
		if !u.uses(first, s.bound) {
			ok, err := u.moved(segments[i+1])
			if err == nil && ok { // after a power cut the files of the next segment must not be in the directory
				err = l.contents.fs.SyncDir(filepath.Dir(segments[i+1].dirs[0]))
			}
			if err != nil {
				return err
			}
			if ok {
				ids = append(ids, id)
			}
		}
		first = s.bound
	}
	if len(ids) > 0 {
		if err := l.contents.fs.SyncDir(l.dir); err != nil {
			return err
		}
		err := l.withRoom(func() error { return u.dropSegments(ids) })
		if err != nil {
			return err
		}
	}
	l.mu.RLock()
	used := sharesOf(l.state.Segments)
	l.mu.RUnlock()
	listed, err := listedShares(l.o.FS, l.dir)
	if err != nil || slices.Equal(listed, used) {
		return err
	}
	// After a power cut, the log must not name a share that is not listed.
	if err := l.Sync(); err != nil {
		return err
	}
	if err := writeList(l.o.FS, l.dir, used); err != nil {
		return err
	}
	r.Dropped = slices.DeleteFunc(listed, func(id string) bool { return slices.Contains(used, id) })
	return nil
}

// dropSegments removes segments from the log and from the layout.
func (u *reclaiming) dropSegments(ids []string) error {
	l := u.l
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.update(func(tx *Tx) error {
		for _, id := range ids {
			tx.batch.Unseal(id)
		}
		return nil
	})
	if err == nil {
		l.contents.setSegments(l.state.Segments)
	}
	return err
}

// remove removes the files in u.dirs that are not in use, or only counts them if dry is true. It continues after an
// error, but not after the end of ctx.
func (u *reclaiming) remove(ctx context.Context, r *Reclaimed, dry bool) (err error) {
	on := u.l.o.FS
	for _, top := range u.dirs {
		dirs, e := on.ReadDir(top)
		err = errors.Join(err, ignoreMissing(e))
		for _, d := range dirs {
			entries, e := on.ReadDir(filepath.Join(top, d.Name()))
			err = errors.Join(err, ignoreMissing(e))
			for _, f := range entries {
				if ctx.Err() != nil {
					return errors.Join(err, ctx.Err())
				}
				path := filepath.Join(top, d.Name(), f.Name())
				number, e := strconv.ParseUint(f.Name(), 16, 64)
				if e != nil || number >= u.low || pathIn(top, number) != path || u.uses(number, number+1) {
					continue
				}
				bytes := int64(0)
				if info, e := on.Stat(path); e == nil {
					bytes = blocksOf(info)
				}
				if !dry {
					e = on.Remove(path)
				}
				if e == nil {
					r.Files, r.Bytes = r.Files+1, r.Bytes+bytes
				}
				err = errors.Join(err, ignoreMissing(e))
			}
		}
	}
	return err
}

// ignoreMissing returns err, or nil if it reports that a file is missing: another process has removed the file.
func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// blocksOf returns the disk space of a file in bytes.
func blocksOf(info os.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}

// numbers returns the numbers of the pinned contents files.
func (s *pins) numbers() (list []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for number := range s.byNumber {
		list = append(list, number)
	}
	return list
}

// numbers returns the numbers of the contents files that Files have open.
func (fs *files) numbers() (list []uint64) {
	fs.mu.Lock()
	all := make([]*File, 0, len(fs.byNode))
	for _, f := range fs.byNode {
		all = append(all, f)
	}
	fs.mu.Unlock() // a File is locked before files
	for _, f := range all {
		f.mu.RLock()
		if f.place == inContent {
			list = append(list, f.number)
		}
		f.mu.RUnlock()
	}
	return list
}
