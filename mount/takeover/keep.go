// Package takeover passes a mount from the process that serves it to the successor of that process. The descriptors of the mount are
// held by a keeper, which is outside of both processes. A state file has all other information. The process may be
// killed at any moment: the successor then finds the state either before or after the last update, but nothing in between.
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

// Keeper holds open files for the successor of this process. If this process sent a file and died before the keeper received
// it, the keeper still holds the file.
type Keeper interface {
	// Keep makes the keeper hold a copy of f, in place of an earlier file with the same name.
	Keep(name string, f *os.File) error
	// Drop makes the keeper close the file with this name. It returns nil if there is no such file.
	Drop(name string) error
}

// part is the role of an open file of a mount. The keeper holds the file under the name KEY.part, where KEY identifies the
// mount.
type part string

const (
	partState part = "state" // a stateFile; held from before any part of the mount exists until all parts are removed

	// The following parts exist besides the state.
	PartDevice part = "device" // the FUSE device of the mount
	// PartLock is the lock of the home. It is held so that no other process can lock the home between two workers.
	PartLock part = "lock"
	// PartMonitor is the listening socket in the git directory that answers git's fsmonitor queries.
	PartMonitor part = "fsmonitor"
	// PartObjects is the listening socket for the promisor remote helper.
	PartObjects part = "promisor"
	// PartLogins is the listening socket for the credential helper.
	PartLogins part = "credential"
	// PartGuests is the listening socket for processes in containers.
	PartGuests part = "guests"
)

// parts lists all parts, in the order in which Drop drops them.
var parts = []part{PartDevice, PartLock, PartMonitor, PartObjects, PartLogins, PartGuests, partState}

// Handover sends the files and the state to the keeper that the successor of one mount needs. The zero value does nothing.
// The methods may be called from any goroutine.
type Handover struct {
	keeper Keeper
	key    string     // first part of the names under which the keeper holds the files
	state  *stateFile // nil: nothing is kept
	// dir is the directory of the mount, for log messages.
	dir string
	log *zap.Logger
}

// Begin returns the Handover of a new mount with state h. If keeper is nil, or after an error, which is logged, Begin returns
// a Handover that does nothing.
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

// Resume returns the Handover of a mount of the predecessor. Resume fails if the predecessor died before any part of the
// mount existed. It then drops all files of the mount.
func Resume(keeper Keeper, in Inherited, log *zap.Logger) (Handover, error) {
	state, err := openStateFile(in.files[partState])
	// The state is kept before any other part of the mount is created, so without a valid state there is nothing to resume.
	if err != nil {
		k := Handover{keeper: keeper, key: in.Key, log: log, state: &stateFile{file: in.Take(partState)}}
		k.Drop()
		in.Close()
		return Handover{}, err
	}
	delete(in.files, partState)
	return Handover{keeper: keeper, key: in.Key, state: state, dir: state.get().Dir, log: log}, nil
}

// State returns the state after the last Update, or the zero value if nothing is kept.
func (k *Handover) State() State {
	if k.state == nil {
		return State{}
	}
	return k.state.get()
}

// Keep sends a copy of f to the keeper. It only logs an error; the mount may then end with this process.
func (k *Handover) Keep(p part, f *os.File) {
	if k.state == nil {
		return
	}
	if err := k.keeper.Keep(k.key+"."+string(p), f); err != nil {
		k.log.Warn("mount may not outlive this process", zap.String("dir", k.dir), zap.Error(err))
	}
}

// KeepAs returns a function that calls Keep with part p and always returns nil.
func (k *Handover) KeepAs(p part) func(*os.File) error {
	return func(f *os.File) error { k.Keep(p, f); return nil }
}

// Update changes the state that a successor finds. change must not block. Update only logs an error.
func (k *Handover) Update(change func(h *State)) {
	if k.state == nil {
		return
	}
	if err := k.state.update(change); err != nil {
		k.log.Warn("update takeover state", zap.String("dir", k.dir), zap.Error(err))
	}
}

// Stale reports whether a process died while it was changing the working tree.
func (k *Handover) Stale() bool { return k.state != nil && k.state.get().Stale }

// Drop drops all parts, after the mount has ended. It drops the state last: if this process is killed before that, a
// successor needs the state to interpret the other parts.
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

// Inherited is the set of files that the predecessor has kept for one mount. It must not be used concurrently.
type Inherited struct {
	Key   string // first part of the names of the files; it identifies the mount
	files map[part]*os.File
}

// Inherit groups kept files by mount. It leaves out files that do not belong to a mount.
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

// Take removes a part from the set and returns it, or nil if the set does not have it. The caller must close the file.
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

// State returns the state that the predecessor last wrote. It returns errNoState if that state is invalid.
func (in Inherited) State() (State, error) {
	s, err := openStateFile(in.files[partState])
	if err != nil {
		return State{}, err
	}
	return s.get(), nil
}

// Has reports whether the set has a part, because it was kept and not taken.
func (in Inherited) Has(p part) bool { return in.files[p] != nil }

// File returns a part without taking it, or nil if the set does not have it.
func (in Inherited) File(p part) *os.File { return in.files[p] }

// Put adds a part to the set, for example one that was taken before.
func (in Inherited) Put(p part, f *os.File) { in.files[p] = f }
