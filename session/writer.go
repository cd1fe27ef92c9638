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

// Life is what is known about the process of a Writer.
type Life int

const (
	Unknown Life = iota // it is out of sight: on another machine, or in another pid namespace
	Lives
	Dead
)

// writerFile names a state directory: its path does not, since containers of one image all have the same.
const writerFile = "writer-id"

// Here returns the Writer of a state directory on this machine. Process pid is the one that outlives workers.
func Here(stateDir string, pid int) (Writer, error) {
	w := Writer{Machine: machine(), Boot: bootID(), PIDs: pidNamespace(), PID: pid}
	w.Host, _ = os.Hostname()
	name, err := writerID(stateDir)
	if err != nil {
		return Writer{}, fmt.Errorf("name state directory: %w", err)
	}
	w.State = name
	if w.Started, err = startOf(pid); err != nil {
		return Writer{}, fmt.Errorf("look at process %d: %w", pid, err)
	}
	return w, nil
}

// writerID reads the state directory's name, or gives it one. Of several processes that do so at once all get the same.
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
		if err == nil { // torn by a power loss
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return "", err
			}
		}
		if err := newWriterID(dir, path); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	return "", fmt.Errorf("read %s: it holds no name", path)
}

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
	if err := f.Sync(); err != nil {
		return err
	}
	return os.Link(f.Name(), path) // unlike a rename it does not replace what another process has just made
}

// machine returns a keyed hash of the host's machine id, "" if it has none.
func machine() string {
	id, ok := proc.MachineID()
	if !ok {
		return ""
	}
	sum := hmac.New(sha256.New, []byte(id))
	sum.Write([]byte("artifactfs session writer"))
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

// bootID returns what changes with every boot of a host, "" if it is not known.
func bootID() string {
	id, _ := proc.BootID()
	return id
}

func pidNamespace() string {
	name, _ := proc.Self.Namespace("pid")
	return name
}

// startOf returns when a process that still runs was started, in ticks since the boot: a later process may have its number.
func startOf(pid int) (uint64, error) {
	s, err := proc.Of(pid).Stat()
	if err == nil && s.Ended() { // its parent has not waited for it
		err = fs.ErrNotExist
	}
	return s.Start, err
}

// Same reports whether both are of one state directory, so that one can continue the lane of the other.
func (w Writer) Same(o Writer) bool { return w.State != "" && w.State == o.State }

// Life reports whether the writer's process runs.
func (w Writer) Life() Life {
	host, _ := os.Hostname()
	switch {
	case w.Boot != "" && w.Boot == bootID():
		if w.PIDs != pidNamespace() {
			return Unknown
		}
		if started, err := startOf(w.PID); err != nil || started != w.Started {
			return Dead
		}
		return Lives
	case w.Machine != "" && w.Machine == machine() && w.Host == host: // both, since copies of a machine have one id
		return Dead // it was booted since
	}
	return Unknown
}

// Actor returns the user of this process, as transitions name it.
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
