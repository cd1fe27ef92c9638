package agenthook

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// repeatTime is the maximum time between the two hooks that receive the same event.
const repeatTime = 3 * time.Second

// Repeated reports whether the hook of another agent has received the event e just before the time now. Copilot also
// runs the hooks in the settings of claude, so if the hooks of both are installed, each of its events arrives twice,
// and an event may arrive between the two.
//
// For each event of these agents there is a file, named by a hash of the event, that contains the agent whose hook has
// received the event first. Repeated removes the files of old events.
func Repeated(gitDir string, e Event, now time.Time) (bool, error) {
	if e.Session == "" || e.Agent != Claude && e.Agent != Copilot {
		return false, nil
	}
	sum := sha256.New()
	for _, part := range []string{string(e.Kind), e.Tool, e.Call, e.Text, string(e.Input), string(e.Output)} {
		fmt.Fprintf(sum, "%d %s", len(part), part)
	}
	dir := receivedDir(gitDir, e.Session)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, err
	}
	if err := removeOld(dir, now); err != nil {
		return false, err
	}
	file := filepath.Join(dir, hex.EncodeToString(sum.Sum(nil)[:16]))
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(string(e.Agent))
		return false, errors.Join(err, f.Close())
	}
	if !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	text, err := disk.ReadRegular(file, 100)
	if err != nil {
		return false, missingIsFine(err)
	}
	if string(text) != string(e.Agent) {
		return true, nil
	}
	return false, missingIsFine(os.Chtimes(file, now, now)) // the agent does the same again
}

// removeOld removes the files of events that were received long before the time now.
func removeOld(dir string, now time.Time) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return missingIsFine(err)
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || now.Sub(info.ModTime()) < repeatTime {
			continue // another hook has removed the file, or the event is new
		}
		if err := missingIsFine(os.Remove(filepath.Join(dir, entry.Name()))); err != nil {
			return err
		}
	}
	return nil
}

// receivedDir returns the path of the directory with the events of a conversation that were received lately.
func receivedDir(gitDir, conversation string) string {
	return turnFile(gitDir, conversation) + ".received"
}
