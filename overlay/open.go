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
	// counterContents bounds the numbers of contents from above.
	counterContents = state.CounterContents
	// counterBoot tells in which boot of the host the layer was opened last, and looked through; 0: it was closed
	// and nothing was left to be done.
	counterBoot = state.CounterUser
	// counterUncounted is the node of a file that is no change (Tx.Uncount); 0: there is none.
	counterUncounted = state.CounterUser + 1
)

// Start is how the last use of the overlay ended.
type Start uint8

const (
	Clean     Start = iota // it was closed, or is new
	Killed                 // the process ended, the host did not
	PowerLoss              // the host went down without Close
	Rebooted               // it was closed, and the host may have gone down since: contents that were not fsynced may be missing
)

// Recovery is what Open found and repaired.
type Recovery struct {
	Start    Start
	Records  int64    // in the log
	Cut      int64    // bytes cut from its end
	SavedTo  string   // where those went, if they were kept
	Problems []string // what is not as it should be, for people
	TookOver bool     // what the kernel knows counts
	Kept     []KeptFile
	Shrunk   []Node // after Rebooted: files that do not have the size any more that they had at Close
}

// Open opens the overlay in a directory, which is made if need be.
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

func (o *Options) defaults() {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.FS == nil {
		o.FS = disk.OS
	}
	if o.boot == "" {
		o.boot, _ = o.FS.BootID() // without it every open counts as one after a power cut
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
	if rec.Start == Rebooted && continued { // a process of this boot had it open, and had looked at the contents
		rec.Start = Killed
	}
	rec.TookOver = continued && rec.Start != PowerLoss
	if l.o.TakeOver && !rec.TookOver && !l.o.ReadOnly {
		rec.Problems = append(rec.Problems, "the kernel's lookup counts from the previous process are unknown")
	}
	if err := l.countLookups(rec.TookOver); err != nil {
		return rec, err
	}
	l.next = max(1, l.state.Counter(counterContents)) // 0 is no content
	orphans, err := l.recover(&rec)
	if err != nil || l.o.ReadOnly {
		return rec, err
	}
	if err := l.begin(rec.TookOver); err != nil {
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

// begin notes that the layer is in use. A layer that is taken over has that on record already: to go on with it needs no
// room in the log, which a full disk may not have.
func (l *Layer) begin(tookOver bool) error {
	return l.update(func(tx *Tx) error {
		if l.state.Counter(counterBoot) != l.bootMark() {
			tx.batch.SetCounter(counterBoot, l.bootMark())
		}
		if !tookOver && l.state.Requests() > 0 {
			tx.batch.ForgetRequests() // those of another kernel may have the same numbers
		}
		return nil
	})
}

// replay takes a record of the log. Of a process that was killed on this boot the log is what it wrote, and the base what
// it knew: if something is wrong all the same, there is no layer.
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

// started tells how the last use ended. The log knows of its own; the counter stays behind until this layer has
// been looked through, so that a process which dies while it does that changes nothing.
func (l *Layer) started(found wal.Recovery) Start {
	mark := l.state.Counter(counterBoot)
	switch {
	case found.Fresh, found.Clean && mark == 0 && !found.Rebooted:
		return Clean
	case !found.PowerLost && mark == l.bootMark():
		return Killed
	case !found.PowerLost && mark == 0: // if not closed, the process died at the very end of Close, or in Open before it had begun
		return Rebooted
	}
	return PowerLoss
}

// bootMark is a number for the boot of the host, never 0.
func (l *Layer) bootMark() uint64 {
	h := fnv.New64a()
	h.Write([]byte(l.o.boot))
	return h.Sum64() | 1
}

// makeDirectories makes what is missing and takes the lock.
func (l *Layer) makeDirectories() error {
	_, logErr := l.o.FS.Stat(filepath.Join(l.dir, "log"))
	made := logErr != nil // an Open that failed or was killed may have made the directories and not synced them
	for _, dir := range []string{l.dir, l.contents.dir} {
		switch err := l.o.FS.Mkdir(dir, 0o700); {
		case err == nil:
			made = true
		case !errors.Is(err, fs.ErrExist):
			return err
		}
	}
	if made {
		// fsync of a file in the overlay promises that the file is found.
		for _, dir := range []string{l.dir, filepath.Dir(l.dir)} {
			if err := l.o.FS.SyncDir(dir); err != nil {
				return err
			}
		}
	}
	return l.takeLock()
}

// blame wraps an error of the log in ErrDamaged if it is damage.
func blame(err error) error {
	var damage *wal.DamageError
	if errors.As(err, &damage) {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}

// Close settles and syncs everything. What could not be is told and is not lost: the next Open goes on with it.
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

// abandon closes everything that the layer has open, without a write.
func (l *Layer) abandon() {
	l.files.closeAll()
	if l.wal != nil {
		l.wal.Abandon()
	}
	l.state.Close()
	l.counts.close()
	l.lock()
}
