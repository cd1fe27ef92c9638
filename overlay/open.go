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
	"github.com/artifactfs/artifactfs/overlay/state"
	"github.com/artifactfs/artifactfs/overlay/wal"
)

const (
	// counterContents is an upper bound of the numbers of contents files in use.
	counterContents = state.CounterContents
	// counterBoot is the boot of the host in which the layer was last opened and its recovery completed; 0: the layer
	// was closed and no work was left.
	counterBoot = state.CounterUser
	// counterUncounted is the node of the file that does not count as a change (Tx.Uncount); 0: none.
	counterUncounted = state.CounterUser + 1
)

// Start is the way in which the last use of the overlay ended.
type Start uint8

const (
	Clean     Start = iota // it was closed, or is new
	Killed                 // the process died, the host did not
	PowerLoss              // the host went down before Close
	Rebooted               // it was closed, and the host may have gone down since: contents without an fsync may be missing
)

// Recovery is the result of Open: what it found and what it repaired.
type Recovery struct {
	Start    Start
	Records  int64    // number of records in the log
	Cut      int64    // bytes cut from the end of the log
	SavedTo  string   // file that the cut bytes were saved to, if any
	Problems []string // problems that were found, as text for the user
	TookOver bool     // whether the kernel's lookup counts of the previous process are valid
	// Kept lists the removed and overwritten files that are not in a checkpoint yet.
	Kept   []KeptFile
	Shrunk []Node // after Rebooted: files whose size differs from that at Close
}

// Open opens the overlay in dir, and creates the directory if it does not exist. Errors: ErrInUse, ErrDamaged,
// ErrVersion. The caller must Close the layer.
func Open(dir string, o Options) (*Layer, Recovery, error) {
	o.defaults()
	l := &Layer{
		dir: dir, o: o, log: o.Log,
		contents: &contents{
			fs: o.FS, readOnly: o.ReadOnly, made: map[uint64]bool{},
			dir: filepath.Join(dir, "contents"), lost: filepath.Join(dir, "lost+found"),
		},
		files:  files{byNode: map[Node]*File{}, idle: list.New(), limit: o.idle},
		state:  state.NewSeeded(o.Seed),
		due:    map[Node]struct{}{},
		faults: map[Node]error{},
		lock:   func() {},
		wake:   make(chan struct{}, 1),
		stop:   make(chan struct{}),
	}
	rec, err := l.open()
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
		o.boot, _ = o.FS.BootID() // without a boot ID every open counts as one after a power cut
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
		_, _ = rand.Read(o.Seed[:]) // never fails
	}
}

// open locks the directory, replays the log, recovers the contents and starts the janitor. On an error the caller calls
// abandon.
//
// The order matters: the lock is taken before a file is read, and the lookup counts of the previous process are opened
// before the replay, because replay treats a takeover differently. The contents are recovered before begin records this
// boot in the log: if the process dies in between, the next Open repeats the recovery.
func (l *Layer) open() (Recovery, error) {
	continued := false
	var err error
	if !l.o.ReadOnly {
		if err = l.makeDirectories(); err == nil && l.o.TakeOver {
			l.counts, continued, err = openLookupCounts(l.o.FS, l.lookupCountsPath(), l.o.boot)
		}
		if err != nil {
			return Recovery{}, err
		}
	}
	var found wal.Recovery
	l.wal, found, err = wal.Open(filepath.Join(l.dir, "log"), wal.Options{
		FS: l.o.FS, BootID: l.o.boot, Salvage: l.o.ReadOnly, LostFound: l.contents.lost, Replay: l.replay,
	})
	rec := Recovery{Records: found.Records, Cut: found.Cut, SavedTo: found.SavedTo}
	if err != nil {
		return rec, blame(err)
	}
	if found.Damage != nil {
		rec.Problems = append(rec.Problems, found.Damage.Error())
	}
	rec.Start = l.started(found)
	if rec.Start == Rebooted && continued { // a process of this boot had it open and had completed its recovery
		rec.Start = Killed
	}
	rec.TookOver = continued && rec.Start != PowerLoss
	if l.o.TakeOver && !rec.TookOver && !l.o.ReadOnly {
		rec.Problems = append(rec.Problems, "the kernel's lookup counts from the previous process are unknown")
	}
	if err := l.countLookups(rec.TookOver); err != nil {
		return rec, err
	}
	l.next = max(1, l.state.Counter(counterContents)) // 0 means no contents file
	orphans, err := l.recover(&rec)
	if err != nil || l.o.ReadOnly {
		return rec, err
	}
	if err := l.markInUse(rec.TookOver); err != nil {
		return rec, err
	}
	if rec.Kept, err = l.keptNow(rec.Start); err != nil {
		return rec, err
	}
	l.state.EachDead(func(number uint64) bool { l.dead = append(l.dead, number); return true })
	if l.o.still {
		return rec, nil
	}
	if len(l.dead)+len(l.due)+len(l.forsaken) > 0 {
		l.poke()
	}
	l.busy.Add(1)
	go l.janitor()
	if orphans != nil {
		l.busy.Add(1)
		l.searching.Store(true)
		go l.findOrphans(orphans, l.next, rec.TookOver)
	}
	return rec, nil
}

// markInUse records that the layer is in use. During a takeover the log has that record already: a takeover must need no
// space in the log, because the disk may be full.
func (l *Layer) markInUse(tookOver bool) error {
	return l.update(func(tx *Tx) error {
		if l.state.Counter(counterBoot) != l.bootMark() {
			tx.batch.SetCounter(counterBoot, l.bootMark())
		}
		if !tookOver && l.state.Requests() > 0 {
			tx.batch.ForgetRequests() // requests of another kernel may have the same numbers
		}
		return nil
	})
}

// replay applies one record of the log. If the previous process died on this boot (takeover), the log is complete and
// every node in it was valid: then an error fails the whole Open. Otherwise a record that names a node missing from the
// base tree ends the log.
func (l *Layer) replay(record []byte, _ int64) error {
	if l.counts != nil {
		if err := l.state.Replay(record); err != nil {
			return fmt.Errorf("%w: %w", wal.ErrRefused, err)
		}
		return nil
	}
	if l.o.ValidBase != nil {
		valid := true
		err := state.Nodes(record, func(n Node) bool { valid = n.Own() || l.o.ValidBase(n); return valid })
		if err != nil || !valid {
			return errors.Join(wal.ErrRefused, err)
		}
	}
	if err := l.state.Apply(record); err != nil {
		return fmt.Errorf("%w: %w", wal.ErrRefused, err)
	}
	return nil
}

// started determines how the last use ended, from the log's header and counterBoot. The counter is set only after
// recovery, so a process that dies during recovery does not change the result.
func (l *Layer) started(found wal.Recovery) Start {
	mark := l.state.Counter(counterBoot)
	switch {
	case found.Fresh, found.Clean && mark == 0 && !found.Rebooted:
		return Clean
	case !found.PowerLost && mark == l.bootMark():
		return Killed
	case !found.PowerLost && mark == 0: // not closed only if the process died at the very end of Close, or in Open before begin
		return Rebooted
	}
	return PowerLoss
}

// bootMark returns a hash of the host's boot ID, never 0.
func (l *Layer) bootMark() uint64 {
	h := fnv.New64a()
	h.Write([]byte(l.o.boot))
	return h.Sum64() | 1
}

// makeDirectories creates missing directories, syncs their names, and takes the lock.
func (l *Layer) makeDirectories() error {
	_, logErr := l.o.FS.Stat(filepath.Join(l.dir, "log"))
	made := logErr != nil // an Open that failed or was killed may have created the directories without syncing them
	for _, dir := range []string{l.dir, l.contents.dir} {
		switch err := l.o.FS.Mkdir(dir, 0o700); {
		case err == nil:
			made = true
		case !errors.Is(err, fs.ErrExist):
			return err
		}
	}
	if made {
		// An fsync of a file promises that the file is found after a power cut, so the overlay's own directories must
		// survive it too.
		for _, dir := range []string{l.dir, filepath.Dir(l.dir)} {
			if err := l.o.FS.SyncDir(dir); err != nil {
				return err
			}
		}
	}
	return l.takeLock()
}

// blame wraps err in ErrDamaged if it reports damage of the log.
func blame(err error) error {
	var damage *wal.DamageError
	if errors.As(err, &damage) {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}

// Close writes and syncs everything and releases the lock. If a part of that fails, Close returns the error; nothing is
// lost, and the next Open completes the work.
func (l *Layer) Close() error {
	close(l.stop)
	l.busy.Wait()
	if l.o.ReadOnly {
		l.abandon()
		return nil
	}
	err := l.tidy(true)
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

// abandon closes everything that the layer has open, without writing.
func (l *Layer) abandon() {
	l.files.closeAll()
	if l.wal != nil {
		l.wal.Abandon()
	}
	l.state.Close()
	l.counts.close()
	l.lock()
}
