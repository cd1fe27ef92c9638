package daemon

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

// phase is how far a mount has come, as who takes it over has to know it.
type phase string

const (
	phasePreparing phase = "preparing" // nobody was told of it: it is taken away again
	phaseServed    phase = "served"    // it is taken over
)

// handover is what a mount's next process knows of it beside the descriptors and what lies on the disk. It holds
// secrets and is nowhere but in memory.
type handover struct {
	Phase phase     `json:"phase"`
	ID    string    `json:"id"`
	Dir   string    `json:"dir"`
	Since time.Time `json:"since"`
	Made  []string  `json:"made,omitempty"` // directories that were made for it, the deepest last

	Request control.MountRequest `json:"request"`
	Token   string               `json:"token,omitempty"` // of Request, which does not spell it out

	SessionToken string             `json:"session_token,omitempty"` // the same
	Environment  []byte             `json:"environment,omitempty"`   // the same
	Around       string             `json:"around,omitempty"`
	Resumed      bool               `json:"resumed,omitempty"` // its session was there before
	Notes        []string           `json:"notes,omitempty"`   // of redirects
	Reply        control.MountReply `json:"reply"`             // to whoever asked for the mount

	Record statedir.Record `json:"record"`          // what is mounted, also of a mount without a session
	Hello  []byte          `json:"hello,omitempty"` // of its fuse.Device

	Checkout *gitdir.Checkout `json:"checkout,omitempty"` // nil: too large to be told

	GitReady bool `json:"git_ready,omitempty"` // there is a git directory, and answers to git
	History  bool `json:"history,omitempty"`   // it is complete, or shall not be
	Hydrated bool `json:"hydrated,omitempty"`  // prefetching is through
	Filled   bool `json:"filled,omitempty"`    // the index has what is known of files
	Stale    bool `json:"stale,omitempty"`     // a switch is changing files of which the kernel must be told
	Discard  bool `json:"discard,omitempty"`   // it is being unmounted, and its work thrown away
	Trash    bool `json:"trash,omitempty"`     // with Discard: it can be brought back
	Died     int  `json:"died,omitempty"`      // processes that died while they took it over, one after the other

	Keep time.Duration `json:"keep_ns,omitempty"` // it is being unmounted, and its work kept for so long
}

// stateFile keeps a handover in a file without a name, of which a successor has a descriptor. It is written in place, by
// one process that may be killed at any moment, and says something whole all the same: there are two slots, written in
// turn, each with a number and a sum over what it holds, and the one that is whole with the higher number counts.
type stateFile struct {
	file *os.File

	mu     sync.Mutex
	number uint64
	said   handover
}

const (
	slotSize   = 4 << 20 // bytes; pages that were never written take no memory
	slotHeader = 20      // sum (4), number (8), length (8), little-endian

	maxCheckout = 1 << 20 // bytes of git's configuration that are told; more is read again
)

var (
	errNoState  = errors.New("not the state of a mount")
	castagnoli  = crc32.MakeTable(crc32.Castagnoli)
	slotNumbers = binary.LittleEndian
)

func newStateFile(h handover) (*stateFile, error) {
	fd, err := unix.MemfdCreate("artifactfs-mount", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("keep mount: %w", os.NewSyscallError("memfd_create", err))
	}
	s := &stateFile{file: os.NewFile(uintptr(fd), "artifactfs-mount"), said: h}
	if err := s.update(func(*handover) {}); err != nil {
		return nil, errors.Join(err, s.file.Close())
	}
	return s, nil
}

// openStateFile reads what a process said that is gone.
func openStateFile(f *os.File) (*stateFile, error) {
	s := &stateFile{file: f}
	found := false
	for at := range int64(2) {
		number, text, ok := readSlot(f, at*slotSize)
		if !ok || found && number < s.number {
			continue
		}
		var h handover
		if err := json.Unmarshal(text, &h); err != nil {
			continue
		}
		h.Request.Token, h.Request.SessionToken = control.Secret(h.Token), control.Secret(h.SessionToken)
		h.Request.Environment = control.DecodeEnvironment(h.Environment)
		s.number, s.said, found = number, h, true
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

// update changes what is said. What it said before counts until the change is written whole.
func (s *stateFile) update(change func(h *handover)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.said
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
	s.number, s.said = number, next
	return nil
}

// get is what is said at present.
func (s *stateFile) get() handover {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.said
}
