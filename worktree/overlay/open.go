package overlay

import (
	"container/list"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/worktree/overlay/state"
	"github.com/artifactfs/artifactfs/worktree/overlay/wal"
)

const (
	// counterContents is an upper bound of the contents file numbers in use.
	counterContents = state.CounterContents
	// counterBoot is the counter that identifies the boot of the host in which the layer was last opened and recovered
	// (see the method bootMark). It is 0 if the layer was closed and had no unfinished work.
	counterBoot = state.CounterUser
	// counterUncounted is the counter with the node of the file that Stats and Changed leave out (Tx.Uncount), or 0 if
	// there is none.
	counterUncounted = state.CounterUser + 1
	// counterTimes is the latest ctime that Tx.PutTimes has stored, in nanoseconds since 1970.
	counterTimes = state.CounterUser + 2
	// counterBaseTime is the time of Tx.SetBaseTime, in nanoseconds since 1970, or 0 if it was never called.
	counterBaseTime = state.CounterLast
)

// Start describes how the last use of the overlay ended.
type Start uint8

const (
	Clean     Start = iota // the overlay was closed, or it is new
	Killed                 // the process died, but the host continued to run
	PowerLoss              // the host went down before Close
	// Rebooted means that the overlay was closed, but that the host may have gone down after Close: contents that were not
	// synced by an fsync may be missing.
	Rebooted
)

// Recovery is the result of Open: the state that it found and the repairs that it made.
type Recovery struct {
	Start    Start
	Records  int64    // number of records in the log
	Cut      int64    // bytes cut from the end of the log
	SavedTo  string   // file in which the cut bytes were saved, or ""
	Problems []string // descriptions of the problems that were found, for the user
	TookOver bool     // whether the lookup counts of the previous process were continued
	// Kept lists the removed and overwritten files that no checkpoint contains yet.
	Kept []KeptFile
	// files whose inode was corrected because the contents file has changed since Close; set only if Start is Rebooted
	Shrunk []Node
}

// Open opens the overlay in dir, and creates the directory if it does not exist. It returns ErrInUse, ErrDamaged or
// ErrVersion if the overlay cannot be used. The caller must Close the layer.
func Open(dir string, o Options) (*Layer, Recovery, error) {
	o.defaults()
	l := &Layer{
		dir: dir, o: o, log: o.Log,
		contents: &contents{
			fs: o.FS, readOnly: o.ReadOnly, made: map[uint64]bool{}, moved: map[string]struct{}{},
			overlay: dir, shares: o.Shares, lost: filepath.Join(dir, "lost+found"),
		},
		files:  files{byNode: map[Node]*File{}, idle: list.New(), limit: o.idle},
		state:  state.NewSeeded(o.Seed),
		due:    map[Node]struct{}{},
		faults: map[Node]error{},
		lock:   func() {},
	}
	l.contents.setSegments(nil)
	l.contents.spare = l.files.spare
	l.janitor = janitor{l: l, wake: make(chan struct{}, 1), stop: make(chan struct{})}
	rec, err := (&opening{l: l}).open()
	if err != nil {
		l.abandon()
		return nil, rec, fmt.Errorf("open overlay %s: %w", dir, err)
	}
	return l, rec, nil
}

// defaults replaces zero options by their default values.
func (o *Options) defaults() {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.FS == nil {
		o.FS = disk.OS
	}
	if o.boot == "" {
		o.boot, _ = o.FS.BootID() // without a boot ID, every Open assumes that the power was cut
	}
	if o.pause == 0 {
		o.pause = time.Second
	}
	if o.quiet == 0 {
		o.quiet = 3 * time.Second
	}
	if o.idle == 0 {
		o.idle = maxIdle
	}
	if o.Seed == (state.Seed{}) {
		_, _ = rand.Read(o.Seed[:]) // crypto/rand never fails
	}
}

// opening is the state of one Open: it makes a Layer from the files on disk, and corrects the state that a killed
// process or a power loss has left. No other goroutine uses the Layer during Open, so opening needs no lock.
type opening struct {
	l   *Layer
	rec Recovery // result of Open
}

// open locks the directory, replays the log, recovers the contents and starts the janitor. After an error the caller
// must call abandon.
//
// The order matters. The lock is taken before any file is read. The lookup counts of the previous process are opened
// before the log is replayed, because replay treats a takeover differently. The contents are recovered before markInUse
// records the current boot in the log: if the process dies in between, the next Open repeats the recovery.
func (s *opening) open() (Recovery, error) {
	continued := false
	var err error
	if !s.l.o.ReadOnly {
		if err = s.makeDirectories(); err == nil && s.l.o.TakeOver {
			s.l.counts, continued, err = openLookupCounts(s.l.o.FS, s.lookupCountsPath(), s.l.o.boot)
		}
		if err != nil {
			return Recovery{}, err
		}
	}
	var found wal.Recovery
	s.l.wal, found, err = wal.Open(filepath.Join(s.l.dir, "log"), wal.Options{
		FS: s.l.o.FS, BootID: s.l.o.boot, Salvage: s.l.o.ReadOnly, LostFound: s.l.contents.lost, Replay: s.replay,
	})
	s.rec = Recovery{Records: found.Records, Cut: found.Cut, SavedTo: found.SavedTo}
	if err != nil {
		return s.rec, blame(err)
	}
	if found.Records == 0 && len(s.l.o.Segments) > 0 && !s.l.o.ReadOnly {
		if err := s.useSegments(); err != nil {
			return s.rec, err
		}
	}
	if err := s.findContents(); err != nil {
		return s.rec, err
	}
	if found.Damage != nil {
		s.rec.Problems = append(s.rec.Problems, found.Damage.Error())
	}
	s.rec.Start = s.started(found)
	// Another process of this boot has opened the layer and completed the recovery before.
	if s.rec.Start == Rebooted && continued {
		s.rec.Start = Killed
	}
	s.rec.TookOver = continued && s.rec.Start != PowerLoss
	if s.l.o.TakeOver && !s.rec.TookOver && !s.l.o.ReadOnly {
		s.rec.Problems = append(s.rec.Problems, "kernel's lookup counts of the previous process are unknown")
	}
	if err := s.countLookups(s.rec.TookOver); err != nil {
		return s.rec, err
	}
	s.l.next = max(1, s.l.state.Counter(counterContents)) // number 0 means that an inode has no contents file
	orphans, err := s.recover()
	if err != nil || s.l.o.ReadOnly {
		return s.rec, err
	}
	if err := s.markInUse(s.rec.TookOver); err != nil {
		return s.rec, err
	}
	if s.rec.Kept, err = s.keptNow(s.rec.Start); err != nil {
		return s.rec, err
	}
	s.l.state.EachDead(func(number uint64) bool { s.l.dead = append(s.l.dead, number); return true })
	if s.l.o.still {
		return s.rec, nil
	}
	if len(s.l.dead)+len(s.l.due)+len(s.l.forsaken) > 0 {
		s.l.janitor.poke()
	}
	s.l.janitor.busy.Add(1)
	go s.l.janitor.run()
	if orphans != nil {
		s.l.janitor.busy.Add(1)
		s.l.searching.Store(true)
		go s.l.findOrphans(orphans, s.l.next, s.rec.TookOver)
	}
	return s.rec, nil
}

// markInUse records in the log that the layer is in use. After a takeover the log already contains that record, so
// markInUse appends nothing, because a takeover must succeed even if the disk is full.
func (s *opening) markInUse(tookOver bool) error {
	return s.l.update(func(tx *Tx) error {
		if s.l.state.Counter(counterBoot) != s.bootMark() {
			tx.batch.SetCounter(counterBoot, s.bootMark())
		}
		if !tookOver && s.l.state.Requests() > 0 {
			// after a restart of the host, the kernel may use the numbers of recorded requests again
			tx.batch.ForgetRequests()
		}
		return nil
	})
}

// replay applies one record of the log. If the previous process died in this boot (takeover), the log is complete and
// every node in it was valid, so replay does not check the nodes. Otherwise replay refuses a record that names a node
// missing from the base tree. After a refused record, Open cuts the log if the power was lost, and otherwise reports
// damage.
func (s *opening) replay(record []byte, _ int64) error {
	if s.l.counts != nil {
		if err := s.l.state.Replay(record); err != nil {
			return fmt.Errorf("%w: %w", wal.ErrRefused, err)
		}
		return nil
	}
	if s.l.o.ValidBase != nil {
		valid := true
		err := state.Nodes(record, func(n Node) bool { valid = n.Own() || s.l.o.ValidBase(n); return valid })
		if err != nil || !valid {
			return errors.Join(wal.ErrRefused, err)
		}
	}
	if err := s.l.state.Apply(record); err != nil {
		return fmt.Errorf("%w: %w", wal.ErrRefused, err)
	}
	return nil
}

// started determines how the last use ended, from the log's header and the counter counterBoot. The counter is set only
// after recovery, so if a process dies during recovery, the next Open gets the same result.
func (s *opening) started(found wal.Recovery) Start {
	mark := s.l.state.Counter(counterBoot)
	switch {
	case found.Fresh, found.Clean && mark == 0 && !found.Rebooted:
		return Clean
	case !found.PowerLost && mark == s.bootMark():
		return Killed
	// The counter is 0 in three cases: the last process closed the layer, died at the very end of Close, or died in Open
	// before markInUse.
	case !found.PowerLost && mark == 0:
		return Rebooted
	}
	return PowerLoss
}

// bootMark returns a hash of the host's boot ID. It is never 0.
func (s *opening) bootMark() uint64 {
	h := fnv.New64a()
	h.Write([]byte(s.l.o.boot))
	return h.Sum64() | 1
}

// makeDirectories creates the missing directories, syncs their names, and takes the lock.
func (s *opening) makeDirectories() error {
	_, logErr := s.l.o.FS.Stat(filepath.Join(s.l.dir, "log"))
	if logErr != nil && len(s.l.o.Segments) == 0 {
		lost, err := lostSegments(s.l.dir, s.l.o, nil)
		if err != nil {
			return err
		}
		if len(lost) > 0 {
			return fmt.Errorf("open log, which has named shares: %w: %w", ErrDamaged, logErr)
		}
	}
	// without a log, an earlier Open may have failed after it created the directories, before they were synced
	made := logErr != nil
	dirs := []string{s.l.dir}
	// Otherwise the log states which directory has the contents files; see findContents. An overlay with the contents of
	// another one never has this directory: it would seem to be the former directory of the first share.
	if made && len(s.l.o.Segments) == 0 {
		dirs = append(dirs, s.l.contents.layout.Load().own)
	}
	for _, dir := range dirs {
		switch err := s.l.o.FS.Mkdir(dir, 0o700); {
		case err == nil:
			made = true
		case !errors.Is(err, fs.ErrExist):
			return err
		}
	}
	if made {
		// A file that was synced by fsync must be found after a power cut. So the directories that lead to the file must also
		// survive a power cut.
		for _, dir := range []string{s.l.dir, filepath.Dir(s.l.dir)} {
			if err := s.l.o.FS.SyncDir(dir); err != nil {
				return err
			}
		}
	}
	return s.takeLock()
}

// findContents finds out from the replayed log where the contents files are, and creates the directory for new ones if
// it is missing.
func (s *opening) findContents() error {
	if err := s.findLost(); err != nil {
		return err
	}
	segments := s.l.state.Segments
	if len(segments) > 0 && s.l.o.Shares == "" {
		return ErrShares
	}
	s.l.contents.setSegments(segments)
	if err := s.checkSegments(segments); err != nil || s.l.o.ReadOnly {
		return err
	}
	if err := s.checkList(segments); err != nil {
		return err
	}
	if len(segments) > 0 { // a power cut may have lost the raised version, and kept the record of the segment
		if err := s.l.wal.Raise(); err != nil {
			return err
		}
	}
	if err := s.l.contents.removeStrays(); err != nil { // the files do no harm, and the disk may be full
		s.l.log.Warn("remove directories of contents that the log does not name", zap.Error(err))
	}
	err := s.l.o.FS.Mkdir(s.l.contents.layout.Load().own, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		err = s.l.o.FS.SyncDir(s.l.dir)
	}
	return err
}

// checkSegments checks that the directory of each segment exists. Without it, all files of the segment would seem to be
// files that a power cut has removed. For a missing directory, checkSegments returns ErrDamaged, or adds a problem if
// the layer is opened for reading.
func (s *opening) checkSegments(segments []state.Segment) error {
	for i, g := range segments {
		var err error
		for _, dir := range s.l.contents.layout.Load().segments[i].dirs {
			if _, err = s.l.o.FS.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				break
			}
		}
		switch {
		case err == nil:
		case !errors.Is(err, fs.ErrNotExist):
			return err
		case s.l.o.ReadOnly:
			s.rec.Problems = append(s.rec.Problems, fmt.Sprintf("contents of share %s are missing", g.Share))
		default:
			return fmt.Errorf("find contents of share %s: %w: %w", g.Share, ErrDamaged, err)
		}
	}
	return nil
}

// blame makes err wrap ErrDamaged if err reports that the log is damaged, and returns every other error unchanged.
func blame(err error) error {
	var damage *wal.DamageError
	if errors.As(err, &damage) {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}

// Close writes and syncs all changes and releases the lock. If a part of that fails, Close returns the error, but no
// change is lost: the next Open completes the work.
func (l *Layer) Close() error {
	close(l.janitor.stop)
	l.janitor.busy.Wait()
	if l.o.ReadOnly {
		l.abandon()
		return nil
	}
	err := l.janitor.tidy(true)
	l.mu.Lock()
	if err == nil && len(l.due)+len(l.faults)+len(l.forsaken) == 0 && !l.searching.Load() {
		err = l.update(func(tx *Tx) error { tx.batch.SetCounter(counterBoot, 0); return nil })
	}
	l.mu.Unlock()
	l.files.closeAll()
	err = errors.Join(err, l.beforeSync(), l.wal.Close())
	l.state.Close()
	l.counts.close()
	l.lock()
	if err != nil {
		return fmt.Errorf("close overlay %s: %w", l.dir, err)
	}
	return nil
}

// abandon closes all files and memory of the layer without writing anything, and releases the lock.
func (l *Layer) abandon() {
	l.files.closeAll()
	if l.wal != nil {
		l.wal.Abandon()
	}
	l.state.Close()
	l.counts.close()
	l.lock()
}
