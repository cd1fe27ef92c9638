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
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/statedir"
)

// Phase is the phase of a mount in which its process died.
type Phase string

const (
	Preparing Phase = "preparing" // no caller was answered: a successor removes it
	Served    Phase = "served"    // a successor takes it over
)

// State is what the successor must know of a mount besides the open files and the files in its home. It holds secrets and is
// only in memory.
type State struct {
	Phase Phase     `json:"phase"`
	ID    string    `json:"id"`
	Dir   string    `json:"dir"`
	Since time.Time `json:"since"`
	Made  []string  `json:"made,omitempty"` // directories that were created for it, the deepest last

	Request control.MountRequest `json:"request"`
	Token   string               `json:"token,omitempty"` // of Request, whose JSON has no secrets

	SessionToken string             `json:"session_token,omitempty"` // the same
	Environment  []byte             `json:"environment,omitempty"`   // the same
	Around       string             `json:"around,omitempty"`
	Resumed      bool               `json:"resumed,omitempty"` // its session was there before
	Notes        []string           `json:"notes,omitempty"`   // of redirects
	Reply        control.MountReply `json:"reply"`             // to the request for the mount

	Record statedir.Record `json:"record"`          // what is mounted, also of a mount without a session
	Hello  []byte          `json:"hello,omitempty"` // of its fuse.Device

	Checkout *gitdir.Checkout `json:"checkout,omitempty"` // nil: larger than MaxCheckout

	GitReady bool `json:"git_ready,omitempty"` // the git directory is written, and git is answered
	History  bool `json:"history,omitempty"`   // it is complete, or not wanted
	Hydrated bool `json:"hydrated,omitempty"`  // prefetching has ended
	Filled   bool `json:"filled,omitempty"`    // the index has the sizes that are known
	Stale    bool `json:"stale,omitempty"`     // files are being changed whose old contents the kernel may have cached
	Discard  bool `json:"discard,omitempty"`   // it is being unmounted, and its session discarded
	Trash    bool `json:"trash,omitempty"`     // with Discard: into the trash
	Died     int  `json:"died,omitempty"`      // processes in a row that died while they took it over

	Keep time.Duration `json:"keep_ns,omitempty"` // it is being unmounted, and its session kept for so long
}

// stateFile keeps a State in a memory file, of which a successor has a descriptor. It is written in place by one process that may be
// killed at any moment. There are two slots, written in turn, each with a number and a checksum: the undamaged slot with the
// higher number counts.
type stateFile struct {
	file *os.File

	mu     sync.Mutex
	number uint64
	state  State
}

const (
	slotSize   = 4 << 20 // bytes; pages that were never written take no memory
	slotHeader = 20      // sum (4), number (8), length (8), little-endian

	// MaxCheckout is the size in bytes of the largest configuration of git that a State holds. A larger one is read again.
	MaxCheckout = 1 << 20
)

var (
	errNoState  = errors.New("not the state of a mount")
	castagnoli  = crc32.MakeTable(crc32.Castagnoli)
	slotNumbers = binary.LittleEndian
)

func newStateFile(h State) (*stateFile, error) {
	fd, err := unix.MemfdCreate("artifactfs-mount", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("keep mount: %w", os.NewSyscallError("memfd_create", err))
	}
	s := &stateFile{file: os.NewFile(uintptr(fd), "artifactfs-mount"), state: h}
	if err := s.update(func(*State) {}); err != nil {
		return nil, errors.Join(err, s.file.Close())
	}
	return s, nil
}

// openStateFile reads the state that a dead process wrote. It returns errNoState if neither slot is undamaged.
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

// update writes a changed state. The state before counts until the write is complete.
func (s *stateFile) update(change func(h *State)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.state
	change(&next)
	next.Token, next.SessionToken = string(next.Request.Token), string(next.Request.SessionToken)
	next.Environment = next.Request.Environment.Encode()
	text, err := json.Marshal(next)
	if err == nil && len(text) > slotSize-slotHeader {
		err = fmt.Errorf("%d bytes are too many", len(text))
	}
	if err != nil {
		return fmt.Errorf("keep mount: %w", err)
	}
	number := s.number + 1
	slot := make([]byte, slotHeader, slotHeader+len(text))
	slotNumbers.PutUint64(slot[4:], number)
	slotNumbers.PutUint64(slot[12:], uint64(len(text)))
	slotNumbers.PutUint32(slot, crc32.Update(crc32.Checksum(slot[4:], castagnoli), castagnoli, text))
	if _, err := s.file.WriteAt(append(slot, text...), int64(number%2)*slotSize); err != nil {
		return fmt.Errorf("keep mount: %w", err)
	}
	s.number, s.state = number, next
	return nil
}

// get returns the state.
func (s *stateFile) get() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}
