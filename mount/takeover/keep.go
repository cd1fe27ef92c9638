// Package takeover hands a mount from the process that serves it to its successor: open files that a keeper outside of both holds,
// and a state file with what the successor must know besides. A process may be killed at any moment; the successor finds either
// the state before an update or the one after.
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

// Keeper holds open files for the successor of this process. A file that was sent before this process died counts, even if the keeper
// had not read it by then.
type Keeper interface {
	// Keep holds a copy of f in place of an earlier file of that name.
	Keep(name string, f *os.File) error
	// Drop closes the file of a name. It is no error if there is none.
	Drop(name string) error
}

// part is the role of an open file of a mount. The keeper has it by the name KEY.part.
type part string

const (
	partState part = "state" // a stateFile; held from before the mount is made until nothing of it is left

	// The parts besides the state.
	PartDevice  part = "device"    // the mount's /dev/fuse
	PartLock    part = "lock"      // of its home: no other process can lock that between two workers
	PartMonitor part = "fsmonitor" // sockets in its git directory that are listened on
	PartObjects part = "promisor"
	PartLogins  part = "credential"
	PartGuests  part = "guests"
)

var parts = []part{PartDevice, PartLock, PartMonitor, PartObjects, PartLogins, PartGuests, partState}

// Handover keeps what the successor needs of one mount. The zero one keeps nothing. Its methods may be called by any goroutine.
type Handover struct {
	keeper Keeper
	key    string
	state  *stateFile // nil: nothing is kept
	dir    string
	log    *zap.Logger
}

// Begin returns the handover of a new mount. Without a keeper, or after an error, which is logged, it keeps nothing.
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

// Resume returns the handover of a mount of a predecessor. After an error nothing of the mount existed yet, and all is dropped.
func Resume(keeper Keeper, in Inherited, log *zap.Logger) (Handover, error) {
	state, err := openStateFile(in.files[partState])
	if err != nil { // the state is kept before anything is made
		k := Handover{keeper: keeper, key: in.Key, log: log, state: &stateFile{file: in.Take(partState)}}
		k.Drop()
		in.Close()
		return Handover{}, err
	}
	delete(in.files, partState)
	return Handover{keeper: keeper, key: in.Key, state: state, dir: state.get().Dir, log: log}, nil
}

// State returns the state of the last Update; the zero one if nothing is kept.
func (k *Handover) State() State {
	if k.state == nil {
		return State{}
	}
	return k.state.get()
}

// Keep gives the keeper a copy of f. An error is logged: the mount may then end with this process.
func (k *Handover) Keep(p part, f *os.File) {
	if k.state == nil {
		return
	}
	if err := k.keeper.Keep(k.key+"."+string(p), f); err != nil {
		k.log.Warn("the mount may end with this process", zap.String("dir", k.dir), zap.Error(err))
	}
}

// KeepAs returns Keep for one part.
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

// Stale reports whether a process died while it changed the working tree.
func (k *Handover) Stale() bool { return k.state != nil && k.state.get().Stale }

// Drop drops all parts: nothing of the mount exists any more. The state is dropped last, so that a successor knows what the rest is.
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

// Inherited is what a predecessor has kept of one mount. It is used by one goroutine.
type Inherited struct {
	Key   string
	files map[part]*os.File
}

// Inherit sorts kept files by mounts. Files that belong to no mount are left out.
func Inherit(kept []keeper.Kept) (list []Inherited) {
	for _, k := range kept {
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

// Take returns a part, which the caller closes; nil if there is none.
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

// State returns the last state that the predecessor wrote.
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

// Put returns a part that was taken.
func (in Inherited) Put(p part, f *os.File) { in.files[p] = f }
