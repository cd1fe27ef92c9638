package session

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// Life states whether the process of a Writer still runs.
type Life int

// Values of Life.
const (
	Unknown Life = iota // cannot be found out, because the process is on another machine or in another PID namespace
	Lives               // the process is running
	Dead                // the process has ended, or its machine was booted after the start of the process
)

// writerFile is the name of the file in a state directory that contains the random ID of the directory. The path cannot
// be the ID, because it is the same in all containers of one image.
const writerFile = "writer-id"

// Here returns the Writer for the state directory stateDir on this machine. pid is the ID of the process of the daemon
// that runs as long as the daemon. If the state directory has no ID yet, Here creates it.
func Here(stateDir string, pid int) (Writer, error) {
	w := Writer{Machine: machine(), Boot: bootID(), PIDs: pidNamespace(), PID: pid}
	w.Host, _ = os.Hostname()
	name, err := writerID(stateDir)
	if err != nil {
		return Writer{}, fmt.Errorf("read ID of the state directory: %w", err)
	}
	w.State = name
	if w.Started, err = startOf(pid); err != nil {
		return Writer{}, fmt.Errorf("read process %d: %w", pid, err)
	}
	return w, nil
}

// writerID returns the ID of the state directory dir. It creates the ID if there is none. Concurrent calls of several
// processes return the same ID.
func writerID(dir string) (string, error) {
	path := filepath.Join(dir, writerFile)
	for range 2 {
		text, err := os.ReadFile(path)
		if err == nil && len(text) == 33 {
			return strings.TrimSpace(string(text)), nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if err == nil { // the ID has 32 hexadecimal digits and a line feed; a power failure may leave less
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return "", err
			}
		}
		if err := newWriterID(dir, path); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	return "", fmt.Errorf("read %s: file contains no ID of a state directory", path)
}

// newWriterID creates the file path in the state directory dir with a new random ID. It returns fs.ErrExist if another
// process has created the file first.
func newWriterID(dir, path string) error {
	f, err := os.CreateTemp(dir, "."+writerFile+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	var raw [16]byte
	rand.Read(raw[:])
	if _, err := f.WriteString(hex.EncodeToString(raw[:]) + "\n"); err != nil {
		return err
	}
	// The contents must be on disk before the file gets its name.
	if err := f.Sync(); err != nil {
		return err
	}
	// unlike rename(2), link(2) does not replace the file that another process has just created
	return os.Link(f.Name(), path)
}

// machine returns a keyed hash of the host's machine ID, or "" if the host has none. According to machine-id(5), only
// such a hash may be published.
func machine() string {
	id, ok := proc.MachineID()
	if !ok {
		return ""
	}
	sum := hmac.New(sha256.New, []byte(id))
	sum.Write([]byte("artifactfs session writer"))
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

// bootID returns an ID that changes with every boot of the host, or "" if it cannot be read.
func bootID() string {
	id, _ := proc.BootID()
	return id
}

// pidNamespace returns the name of this process's PID namespace, or "" if it cannot be read.
func pidNamespace() string {
	name, _ := proc.Self.Namespace("pid")
	return name
}

// startOf returns the start time of a running process in clock ticks since boot, by which the process can be
// distinguished from a later one with the same PID. It returns fs.ErrNotExist if the process has ended, even if it is
// still a zombie.
func startOf(pid int) (uint64, error) {
	s, err := proc.Of(pid).Stat()
	if err == nil && s.Ended() { // the process is a zombie
		err = fs.ErrNotExist
	}
	return s.Start, err
}

// Same reports whether the writers w and o use the same state directory, so that the later one can continue the lane of
// the earlier one.
func (w Writer) Same(o Writer) bool { return w.State != "" && w.State == o.State }

// Life reports whether the writer's process still runs.
func (w Writer) Life() Life {
	host, _ := os.Hostname()
	switch {
	case w.Boot != "" && w.Boot == bootID():
		// A PID is valid only in its own PID namespace, so it cannot be looked up from another namespace.
		if w.PIDs != pidNamespace() {
			return Unknown
		}
		// If the start times differ, the PID now belongs to another process, and the writer's process has ended.
		if started, err := startOf(w.PID); err != nil || started != w.Started {
			return Dead
		}
		return Lives
	// Also compare the host name, because copies of a virtual machine have the same machine ID.
	case w.Machine != "" && w.Machine == machine() && w.Host == host:
		return Dead // the machine was booted after the process started
	}
	return Unknown
}

// Actor returns the name of the user of this process, for the history of sessions: the value of $ARTIFACTFS_ACTOR if it
// is set, otherwise USER@HOST.
func Actor() string {
	if a := strings.TrimSpace(os.Getenv("ARTIFACTFS_ACTOR")); a != "" {
		return a
	}
	name := strconv.Itoa(os.Getuid())
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil && host != "" {
		name += "@" + host
	}
	return name
}
