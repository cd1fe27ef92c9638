package takeover

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/host/statedir"
)

// Phase states how far a mount was when its process died.
type Phase string

const (
	Preparing Phase = "preparing" // no client has received a reply, so a successor removes the mount
	Served    Phase = "served"    // the mount is in use, so a successor takes it over
)

// State is the information about a mount that a successor needs in addition to the open files and the files in the
// mount's home. It contains secrets, so it is stored only in memory.
type State struct {
	Phase Phase     `json:"phase"`
	ID    string    `json:"id"`
	Dir   string    `json:"dir"`
	Since time.Time `json:"since"`
	Made  []string  `json:"made,omitempty"` // directories that were created for the mount, the deepest one last

	Request control.MountRequest `json:"request"`
	// token of Request, which the JSON form of Request does not contain
	Token string `json:"token,omitempty"`

	// session token of Request, which the JSON form does not contain
	SessionToken string `json:"session_token,omitempty"`
	Environment  []byte `json:"environment,omitempty"` // environment of Request, which the JSON form does not contain
	// ParentDir is the directory of the mount that contains this one, if this one is a submodule; "" for other mounts.
	ParentDir string             `json:"around,omitempty"`
	Resumed   bool               `json:"resumed,omitempty"` // whether the session existed before the mount
	Notes     []string           `json:"notes,omitempty"`   // notes on paths that could not be redirected
	Reply     control.MountReply `json:"reply"`             // reply to the request for the mount

	Record statedir.Record `json:"record"` // base of the mount; set even if the mount has no session
	// Hello is the encoded state of the FUSE connection (fuse.Device).
	Hello []byte `json:"hello,omitempty"`

	// git's configuration; nil if the configuration is larger than MaxCheckout bytes
	Checkout *gitdir.Checkout `json:"checkout,omitempty"`

	GitReady bool `json:"git_ready,omitempty"` // whether the git directory exists and git commands can run
	History  bool `json:"history,omitempty"`   // whether the history is complete or was not requested
	Hydrated bool `json:"hydrated,omitempty"`  // whether prefetching has ended
	Filled   bool `json:"filled,omitempty"`    // whether git's index contains all sizes that are known
	// Events is the event process of the mount (package inotify).
	Events fuse.EventProcess `json:"events,omitzero"`
	// Stale is whether files are being changed whose old contents may be in the kernel's cache.
	Stale bool `json:"stale,omitempty"`
	// Discard is whether the mount is being unmounted and its session is to be discarded.
	Discard bool `json:"discard,omitempty"`
	Trash   bool `json:"trash,omitempty"` // whether the session is moved to the trash; used only if Discard is true
	Died    int  `json:"died,omitempty"`  // number of processes in a row that have died while they took over the mount

	// Keep is the time for which the session is kept after the unmount that is in progress; 0 if none is in progress.
	Keep time.Duration `json:"keep_ns,omitempty"`
}

// stateFile stores a State in a memory file (memfd_create(2)), whose descriptor a successor inherits. Because a process
// that writes to the file may be killed at any moment, the file has two slots that are written alternately, each with a
// number and a checksum. The current state is in the valid slot with the higher number.
type stateFile struct {
	file *os.File

	// mu protects number and state. number is the number of the slot that was written last.
	mu     sync.Mutex
	number uint64
	state  State
}

const (
	slotSize   = 4 << 20 // in bytes; pages that were never written use no memory
	slotHeader = 20      // in bytes: checksum (4), number (8), length (8), in little-endian order

	// MaxCheckout is the maximum size, in bytes, of the git configuration in a State. If the configuration is larger, a
	// successor reads the configuration files again.
	MaxCheckout = 1 << 20
)

var (
	errNoState  = errors.New("invalid stored state of a mount")
	castagnoli  = crc32.MakeTable(crc32.Castagnoli)
	slotNumbers = binary.LittleEndian
)

// newStateFile returns a new memory file that contains the state h.
func newStateFile(h State) (*stateFile, error) {
	fd, err := unix.MemfdCreate("artifactfs-mount", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("store mount's state: %w", os.NewSyscallError("memfd_create", err))
	}
	s := &stateFile{file: os.NewFile(uintptr(fd), "artifactfs-mount"), state: h}
	if err := s.update(func(*State) {}); err != nil {
		return nil, errors.Join(err, s.file.Close())
	}
	return s, nil
}

// openStateFile returns the state file f of a dead process. It returns errNoState if neither slot is valid.
func openStateFile(f *os.File) (*stateFile, error) {
	s := &stateFile{file: f}
	found := false
	for at := range int64(2) {
		number, text, ok := readSlot(f, at*slotSize)
		if !ok || found && number < s.number {
			continue
		}
		var h State
		if err := json.Unmarshal(text, &h); err != nil {
			continue
		}
		h.Request.Token, h.Request.SessionToken = control.Secret(h.Token), control.Secret(h.SessionToken)
		h.Request.Environment = control.DecodeEnvironment(h.Environment)
		s.number, s.state, found = number, h, true
	}
	if !found {
		return nil, errNoState
	}
	return s, nil
}

// readSlot returns the number and the text of the slot at the offset at, in bytes. ok is false if the checksum does not
// match.
func readSlot(f *os.File, at int64) (number uint64, text []byte, ok bool) {
	head := make([]byte, slotHeader)
	if _, err := f.ReadAt(head, at); err != nil {
		return 0, nil, false
	}
	n := slotNumbers.Uint64(head[12:])
	if n > slotSize-slotHeader {
		return 0, nil, false
	}
	text = make([]byte, n)
	if _, err := f.ReadAt(text, at+slotHeader); err != nil {
		return 0, nil, false
	}
	sum := crc32.Update(crc32.Checksum(head[4:], castagnoli), castagnoli, text)
	return slotNumbers.Uint64(head[4:]), text, sum == slotNumbers.Uint32(head)
}

// update calls the function change to modify the state, and writes the result to the older slot. The previous state
// remains valid until that write is complete.
func (s *stateFile) update(change func(h *State)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.state
	change(&next)
	next.Token, next.SessionToken = string(next.Request.Token), string(next.Request.SessionToken)
	next.Environment = next.Request.Environment.Encode()
	text, err := json.Marshal(next)
	if err == nil && len(text) > slotSize-slotHeader {
		err = fmt.Errorf("state is too large: %d bytes", len(text))
	}
	if err != nil {
		return fmt.Errorf("store mount's state: %w", err)
	}
	number := s.number + 1
	slot := make([]byte, slotHeader, slotHeader+len(text))
	slotNumbers.PutUint64(slot[4:], number)
	slotNumbers.PutUint64(slot[12:], uint64(len(text)))
	slotNumbers.PutUint32(slot, crc32.Update(crc32.Checksum(slot[4:], castagnoli), castagnoli, text))
	if _, err := s.file.WriteAt(append(slot, text...), int64(number%2)*slotSize); err != nil {
		return fmt.Errorf("store mount's state: %w", err)
	}
	s.number, s.state = number, next
	return nil
}

// get returns the current state of the mount.
func (s *stateFile) get() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}
