// Package takeover hands a mount from the process that serves it to its successor: by open files that a keeper outside
// of both processes holds, and by a state file with the remaining information. The process may be killed at any moment;
// the successor then finds the state either before or after the last update.
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

// Keeper holds open files for the successor of this process. A file that was sent before this process died is held even
// if the keeper had not received it by then.
type Keeper interface {
	// Keep holds a copy of f. It replaces an earlier file of that name.
	Keep(name string, f *os.File) error
	// Drop closes the file of that name. It returns no error if there is none.
	Drop(name string) error
}

// part is the role of an open file of a mount. The keeper holds it under the name KEY.part.
type part string

const (
	partState part = "state" // a stateFile; held from before the mount exists until all of it is removed

	// These are the parts other than the state.
	PartDevice  part = "device"    // /dev/fuse of the mount
	PartLock    part = "lock"      // lock of the home, so that no other process can lock it between two workers
	PartMonitor part = "fsmonitor" // listening sockets in the git directory: this one answers git's fsmonitor
	// PartObjects is the socket of the promisor remote helper.
	PartObjects part = "promisor"
	// PartLogins is the socket of the credential helper.
	PartLogins part = "credential"
	// PartGuests is the socket for processes in containers.
	PartGuests part = "guests"
)

// parts lists all parts in the order in which Drop drops them.
var parts = []part{PartDevice, PartLock, PartMonitor, PartObjects, PartLogins, PartGuests, partState}

// Handover keeps the files and the state that the successor of one mount needs. The zero value keeps nothing. Its
// methods may be called from any goroutine.
type Handover struct {
	keeper Keeper
	key    string
	state  *stateFile // nil if nothing is kept
	dir    string
	log    *zap.Logger
}

// Begin returns the handover of a new mount. Without a keeper, or after an error, which is logged, it returns a Handover
// that keeps nothing.
func Begin(keeper Keeper, h State, log *zap.Logger) Handover {
	if keeper == nil {
		return Handover{}
	}
	var random [4]byte
	rand.Read(random[:])
	k := Handover{keeper: keeper, key: hex.EncodeToString(random[:]), dir: h.Dir, log: log}
	var err error
	if k.state, err = newStateFile(h); err != nil {
		log.Warn("the mount will end with this process", zap.String("dir", h.Dir), zap.Error(err))
		return Handover{}
	}
	k.Keep(partState, k.state.file)
	return k
}

// Resume returns the handover of a mount of a predecessor. If it fails, the predecessor died before any part of the
// mount existed, and Resume drops all files.
func Resume(keeper Keeper, in Inherited, log *zap.Logger) (Handover, error) {
	state, err := openStateFile(in.files[partState])
	if err != nil { // the state is kept before any part of the mount is created
		k := Handover{keeper: keeper, key: in.Key, log: log, state: &stateFile{file: in.Take(partState)}}
		k.Drop()
		in.Close()
		return Handover{}, err
	}
	delete(in.files, partState)
	return Handover{keeper: keeper, key: in.Key, state: state, dir: state.get().Dir, log: log}, nil
}

// State returns the state after the last Update; the zero value if nothing is kept.
func (k *Handover) State() State {
	if k.state == nil {
		return State{}
	}
	return k.state.get()
}

// Keep sends a copy of f to the keeper. An error is logged; the mount may then end with this process.
func (k *Handover) Keep(p part, f *os.File) {
	if k.state == nil {
		return
	}
	if err := k.keeper.Keep(k.key+"."+string(p), f); err != nil {
		k.log.Warn("the mount may end with this process", zap.String("dir", k.dir), zap.Error(err))
	}
}

// KeepAs returns a function that calls Keep with part p. The function always returns nil.
func (k *Handover) KeepAs(p part) func(*os.File) error {
	return func(f *os.File) error { k.Keep(p, f); return nil }
}

// Update changes the state that a successor finds. change must not block. An error is logged.
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

// Drop drops all parts after the mount has ended. It drops the state last, so that a successor of a process that is
// killed meanwhile can interpret the other parts.
func (k *Handover) Drop() {
	if k.state == nil {
		return
	}
	for _, p := range parts {
		if err := k.keeper.Drop(k.key + "." + string(p)); err != nil {
			k.log.Warn("drop what was kept", zap.String("dir", k.dir), zap.Error(err))
			break
		}
	}
	k.state.file.Close()
}

// Inherited is the set of files that a predecessor has kept for one mount. It must not be used concurrently.
type Inherited struct {
	Key   string
	files map[part]*os.File
}

// Inherit groups kept files by mount. It leaves out files that belong to no mount.
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

// Take removes a part from the set and returns it; nil if there is none. The caller closes it.
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

// State returns the state that the predecessor wrote last.
func (in Inherited) State() (State, error) {
	s, err := openStateFile(in.files[partState])
	if err != nil {
		return State{}, err
	}
	return s.get(), nil
}

// Has reports whether a part was kept and not taken.
func (in Inherited) Has(p part) bool { return in.files[p] != nil }

// File returns a part without taking it; nil if there is none.
func (in Inherited) File(p part) *os.File { return in.files[p] }

// Put adds a part that was taken.
func (in Inherited) Put(p part, f *os.File) { in.files[p] = f }
