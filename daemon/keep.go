package daemon

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/internal/keeper"
	"github.com/artifactfs/artifactfs/statedir"
	"github.com/artifactfs/artifactfs/worktree"
)

// Keeper keeps open files for the process that goes on when this one has died, by whatever. What it was given before that
// counts, whether it has heard of it yet or not.
type Keeper interface {
	// Keep keeps a file in place of the one that it had by that name.
	Keep(name string, f *os.File) error
	// Drop forgets one; that there is none is no error.
	Drop(name string) error
}

// part is what is kept of a mount: a file named KEY.part.
type part string

const (
	partState   part = "state"     // a stateFile; from before the mount is made until nothing of it is left
	partDevice  part = "device"    // the mount's /dev/fuse
	partLock    part = "lock"      // of its home, which is free at no moment
	partMonitor part = "fsmonitor" // sockets in its git directory that are listened on
	partObjects part = "promisor"
	partLogins  part = "credential"
	partGuests  part = "guests"
)

var parts = []part{partDevice, partLock, partMonitor, partObjects, partLogins, partGuests, partState}

// keeping has kept what a mount's next process needs. The zero one keeps nothing.
type keeping struct {
	keeper Keeper
	key    string
	state  *stateFile // nil: nothing is kept
	dir    string
	warn   func(string, ...zap.Field)
}

// beginKeeping has the mount known to a successor from now on. A mount that cannot be kept is as good as one without a
// keeper.
func (m *mount) beginKeeping() {
	d := m.daemon
	if d.keeper == nil {
		return
	}
	var random [4]byte
	rand.Read(random[:])
	k := keeping{keeper: d.keeper, key: hex.EncodeToString(random[:]), dir: m.dir, warn: d.log.Warn}
	h := handover{Phase: phasePreparing, ID: m.id, Dir: m.dir, Since: m.since, Request: m.request}
	if m.around != nil {
		h.Around = m.around.dir
	}
	var err error
	if k.state, err = newStateFile(h); err != nil {
		k.warn("the mount will end with this process", zap.String("dir", k.dir), zap.Error(err))
		return
	}
	m.keeping = k
	m.keep(partState, k.state.file)
}

// keep has a file kept. The caller closes its own.
func (k *keeping) keep(p part, f *os.File) {
	if k.state == nil {
		return
	}
	if err := k.keeper.Keep(k.key+"."+string(p), f); err != nil {
		k.warn("the mount may end with this process", zap.String("dir", k.dir), zap.Error(err))
	}
}

// keepAs is keep for those who want a function.
func (k *keeping) keepAs(p part) func(*os.File) error {
	return func(f *os.File) error { k.keep(p, f); return nil }
}

// tell changes what a successor is told.
func (k *keeping) tell(change func(h *handover)) {
	if k.state == nil {
		return
	}
	if err := k.state.update(change); err != nil {
		k.warn("tell a successor", zap.String("dir", k.dir), zap.Error(err))
	}
}

// stale says whether a process died in the middle of a switch.
func (k *keeping) stale() bool { return k.state != nil && k.state.get().Stale }

// drop ends the keeping: nothing of the mount is left. The state goes last, so that who finds anything can tell what it is.
func (k *keeping) drop() {
	if k.state == nil {
		return
	}
	for _, p := range parts {
		if err := k.keeper.Drop(k.key + "." + string(p)); err != nil {
			k.warn("drop what was kept", zap.String("dir", k.dir), zap.Error(err))
			break
		}
	}
	k.state.file.Close()
}

// inheritance is what a dead process has kept of one mount.
type inheritance struct {
	key   string
	files map[part]*os.File
}

// inherited sorts what was kept by mounts. What is of no mount is not ours.
func inherited(kept []keeper.Kept) (list []inheritance) {
	for _, k := range kept {
		key, name, ok := strings.Cut(k.Name, ".")
		if !ok || !slices.Contains(parts, part(name)) {
			continue
		}
		at := slices.IndexFunc(list, func(in inheritance) bool { return in.key == key })
		if at < 0 {
			at = len(list)
			list = append(list, inheritance{key, map[part]*os.File{}})
		}
		list[at].files[part(name)] = k.File
	}
	return list
}

// take gives a file to somebody who closes it.
func (in inheritance) take(p part) *os.File {
	f := in.files[p]
	delete(in.files, p)
	return f
}

// close closes what nobody took.
func (in inheritance) close() {
	for _, f := range in.files {
		f.Close()
	}
	clear(in.files)
}

// errLocked says that a lock was not given up for too long.
var errLocked = errors.New("a lock is held for too long")

// Alive says whether this process can still serve: every mount answers what it has in memory. ctx bounds how long that
// may take.
func (d *Daemon) Alive(ctx context.Context) error {
	done := make(chan struct{})
	at := make(chan string, 1) // what is being asked
	ask := func(what string) {
		select {
		case <-at:
		default:
		}
		at <- what
	}
	go func() { // it stays if a lock is never given up: the process is then about to be ended
		defer close(done)
		ask("the registry")
		for _, m := range d.list() {
			ask(m.dir)
			m.touch()
		}
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("ask %s: %w", <-at, errLocked)
	}
}

// touch takes the locks of a mount that are never held for long.
func (m *mount) touch() {
	m.mu.Lock()
	served := m.cancel != nil
	m.mu.Unlock()
	if served { // the tree is there, and stays
		m.tree.KnownAttr(worktree.Root)
	}
}

func failureOf(h handover, why error) statedir.Failure {
	return statedir.Failure{
		Dir: h.Dir, ID: h.ID, Remote: fault.WithoutSecrets(h.Request.Remote), Session: h.Record.Session, Ref: h.Record.Ref, Commit: h.Record.Commit,
		When: time.Now(), Cause: why.Error(),
	}
}
