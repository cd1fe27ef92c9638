// Package takeover passes a mount from the process that serves it to the successor of that process. A keeper, which is
// outside of both processes, holds the open files of the mount. All other information is in a state file. The process
// may be killed at any moment; the successor then finds the state before or after the last update of the state file.
package takeover

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/keeper"
)

// Keeper holds open files for the successor of this process. A file that this process has sent reaches the keeper even
// if the process dies immediately after that.
type Keeper interface {
	// Keep sends a copy of f to the keeper. It replaces an earlier file with the same name.
	Keep(name string, f *os.File) error
	// Drop makes the keeper close the file with this name. It returns nil if there is no such file.
	Drop(name string) error
}

// part is the role of an open file of a mount. The keeper holds the file under the name KEY.part, where KEY identifies
// the mount.
type part string

const (
	// partState is the state file. The keeper receives it before any other part of the mount, and holds it until all
	// other parts have been removed.
	partState part = "state"

	// The following parts are held in addition to the state file.
	PartDevice part = "device" // the FUSE device of the mount
	// PartLock is the lock file of the mount's home. It is held so that no other process can lock the home between two
	// workers.
	PartLock part = "lock"
	// PartMonitor is the listening socket in the git directory that answers git's fsmonitor queries.
	PartMonitor part = "fsmonitor"
	// PartObjects is the listening socket that supplies git with missing objects (the promisor remote helper).
	PartObjects part = "promisor"
	// PartLogins is the listening socket for git's credential helper.
	PartLogins part = "credential"
	// PartGuests is the listening socket for requests to the daemon from within the mount, for example from a container.
	PartGuests part = "guests"
)

// parts has all parts of a mount, in the order in which Drop removes them.
var parts = []part{PartDevice, PartLock, PartMonitor, PartObjects, PartLogins, PartGuests, partState}

// Handover sends to the keeper the files and the state that the successor needs for one mount. The zero value does
// nothing. The methods may be called from any goroutine.
type Handover struct {
	keeper Keeper
	key    string     // first part of the names under which the keeper holds the files
	state  *stateFile // nil if the mount cannot be taken over
	// dir is the directory of the mount, for log messages.
	dir string
	log *zap.Logger
}

// Begin returns the Handover of a new mount with the state h. If keeper is nil, or after an error, which it logs, it
// returns a Handover that does nothing.
func Begin(keeper Keeper, h State, log *zap.Logger) Handover {
	if keeper == nil {
		return Handover{}
	}
	var random [4]byte
	rand.Read(random[:])
	k := Handover{keeper: keeper, key: hex.EncodeToString(random[:]), dir: h.Dir, log: log}
	var err error
	if k.state, err = newStateFile(h); err != nil {
		log.Warn("mount cannot outlive this process", zap.String("dir", h.Dir), zap.Error(err))
		return Handover{}
	}
	k.Keep(partState, k.state.file)
	return k
}

// Resume returns the Handover of a mount of the predecessor, whose files are in the parameter in. If there is no valid
// state, because the predecessor died before any other part of the mount existed, Resume removes all files of the mount
// from the keeper and returns an error.
func Resume(keeper Keeper, in Inherited, log *zap.Logger) (Handover, error) {
	state, err := openStateFile(in.files[partState])
	// The state is sent before any other part of the mount is created. Without a valid state, there is nothing to take
	// over.
	if err != nil {
		k := Handover{keeper: keeper, key: in.Key, log: log, state: &stateFile{file: in.Take(partState)}}
		k.Drop()
		in.Close()
		return Handover{}, err
	}
	delete(in.files, partState)
	return Handover{keeper: keeper, key: in.Key, state: state, dir: state.get().Dir, log: log}, nil
}

// State returns the state after the last call of Update, or the zero value if the mount cannot be taken over.
func (k *Handover) State() State {
	if k.state == nil {
		return State{}
	}
	return k.state.get()
}

// Keep sends a copy of f to the keeper as the part p. An error is only logged; the mount may then end with this
// process.
func (k *Handover) Keep(p part, f *os.File) {
	if k.state == nil {
		return
	}
	if err := k.keeper.Keep(k.key+"."+string(p), f); err != nil {
		k.log.Warn("mount may not outlive this process", zap.String("dir", k.dir), zap.Error(err))
	}
}

// KeepAs returns a function that calls Keep for the part p and returns nil.
func (k *Handover) KeepAs(p part) func(*os.File) error {
	return func(f *os.File) error { k.Keep(p, f); return nil }
}

// Update calls the function change to modify the state that a successor finds. change must not block. Errors are only
// logged.
func (k *Handover) Update(change func(h *State)) {
	if k.state == nil {
		return
	}
	if err := k.state.update(change); err != nil {
		k.log.Warn("update takeover state", zap.String("dir", k.dir), zap.Error(err))
	}
}

// Stale reports whether a process died while it was changing the working tree: between SetStale(true) and
// SetStale(false).
func (k *Handover) Stale() bool { return k.state != nil && k.state.get().Stale }

// SetStale records whether this process is changing files whose old contents may be in the kernel's page cache.
func (k *Handover) SetStale(stale bool) { k.Update(func(h *State) { h.Stale = stale }) }

// Drop removes all parts of an ended mount from the keeper. It removes the state last, because a successor needs the
// state to understand the other parts if this process is killed before Drop has removed them.
func (k *Handover) Drop() {
	if k.state == nil {
		return
	}
	for _, p := range parts {
		if err := k.keeper.Drop(k.key + "." + string(p)); err != nil {
			k.log.Warn("remove stored state of mount", zap.String("dir", k.dir), zap.Error(err))
			break
		}
	}
	k.state.file.Close()
}

// Inherited has the files that the predecessor has sent to the keeper for one mount. It must not be used concurrently.
type Inherited struct {
	Key   string // first part of the names of the files, which identifies the mount
	files map[part]*os.File
}

// Inherit groups the descriptors from the keeper by mount. It omits those that do not belong to a mount.
func Inherit(descriptors []keeper.Descriptor) (list []Inherited) {
	for _, k := range descriptors {
		key, name, ok := strings.Cut(k.Name, ".")
		if !ok || !slices.Contains(parts, part(name)) {
			continue
		}
		at := slices.IndexFunc(list, func(in Inherited) bool { return in.Key == key })
		if at < 0 {
			at = len(list)
			list = append(list, Inherited{key, map[part]*os.File{}})
		}
		list[at].files[part(name)] = k.File
	}
	return list
}

// Take removes the part p from the set and returns its file, which the caller must close, or nil if the set does not
// contain p.
func (in Inherited) Take(p part) *os.File {
	f := in.files[p]
	delete(in.files, p)
	return f
}

// Close closes the parts that were not taken.
func (in Inherited) Close() {
	for _, f := range in.files {
		f.Close()
	}
	clear(in.files)
}

// State returns the state that the predecessor wrote last. It returns errNoState if that state is invalid.
func (in Inherited) State() (State, error) {
	s, err := openStateFile(in.files[partState])
	if err != nil {
		return State{}, err
	}
	return s.get(), nil
}

// Has reports whether the set contains the part p.
func (in Inherited) Has(p part) bool { return in.files[p] != nil }

// File returns the file of the part p, which remains in the set, or nil if the set does not contain p.
func (in Inherited) File(p part) *os.File { return in.files[p] }

// Put adds the file f to the set as the part p, for example after it was taken.
func (in Inherited) Put(p part, f *os.File) { in.files[p] = f }
