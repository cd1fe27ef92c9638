package agenthook

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// Fired describes the newest event of one kind that a hook of an agent has received. An agent skips hooks that its user
// has not trusted, without a message, so only a received event proves that the hooks work.
type Fired struct {
	Kind         Kind      `json:"kind,omitempty"`         // missing: the event is of the kind Other
	Time         time.Time `json:"time"`                   // time at which the hook was run
	Conversation string    `json:"conversation,omitempty"` // name that the agent has given to the conversation
}

// firedDir is the directory with the newest events, relative to hooksDir. The file AGENT/KIND in it contains the name
// of the conversation, and its modification time is the time of the event.
const firedDir = "fired"

// maxConversation is the maximum size in bytes of the name of a conversation that NoteFired stores.
const maxConversation = 200

// firedFile returns the path of the file about the newest event of one kind.
func firedFile(gitDir string, a Agent, k Kind) string {
	return filepath.Join(gitDir, hooksDir, firedDir, string(a), cmp.Or(string(k), "other"))
}

// MakeDir creates the directory in which the hooks store their state, in the git directory gitDir. The directory shows
// that hooks are installed, so that LastFired distinguishes hooks that have never fired from a working tree without
// hooks.
func MakeDir(gitDir string) error {
	dir := filepath.Join(gitDir, hooksDir)
	if err := os.Mkdir(dir, 0o700); errors.Is(err, fs.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	// If root installs the hooks of another user, the hooks run as this user and write into the directory.
	if info, err := os.Stat(gitDir); err == nil && os.Geteuid() == 0 {
		if s, ok := info.Sys().(*syscall.Stat_t); ok {
			return os.Lchown(dir, int(s.Uid), int(s.Gid))
		}
	}
	return nil
}

// NoteFired stores that a hook has received the event e now. If two hooks store an event of the same kind at once, one
// of the events is stored completely. After a power cut the file may be empty.
func NoteFired(gitDir string, e Event) error {
	file := firedFile(gitDir, e.Agent, e.Kind)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return disk.WriteFileUnsynced(file, []byte(limit(e.Session, maxConversation)), 0o600)
}

// LastFired returns the newest event of each kind that the hooks of each agent have received, newest first. The result
// is nil if no hooks were installed (MakeDir) and none have fired.
func LastFired(gitDir string) (map[Agent][]Fired, error) {
	if _, err := os.Stat(filepath.Join(gitDir, hooksDir)); err != nil {
		return nil, missingIsFine(err)
	}
	all := append(slices.Compact(slices.Sorted(maps.Values(kinds))), Other)
	fired := map[Agent][]Fired{}
	for _, a := range Agents() {
		for _, k := range all {
			f, err := readFired(firedFile(gitDir, a, k))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return fired, fmt.Errorf("read events of hooks: %w", err)
			}
			f.Kind = k
			fired[a] = append(fired[a], f)
		}
		slices.SortStableFunc(fired[a], func(x, y Fired) int { return y.Time.Compare(x.Time) })
	}
	return fired, nil
}

// readFired reads a file that NoteFired has written. A container may be able to change the file.
func readFired(path string) (Fired, error) {
	f, err := disk.OpenRegular(path, 0)
	if err != nil {
		return Fired{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Fired{}, err
	}
	text, err := disk.ReadLimited(f, maxConversation)
	return Fired{Time: info.ModTime(), Conversation: string(text)}, err
}

// ForgetFired removes the stored events of an agent.
func ForgetFired(gitDir string, a Agent) error {
	return os.RemoveAll(filepath.Join(gitDir, hooksDir, firedDir, string(a)))
}
