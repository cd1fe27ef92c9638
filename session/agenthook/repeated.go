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

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// repeatTime is the maximum time between the two hooks that receive the same event.
const repeatTime = 3 * time.Second

// hashSize is the number of bytes of the hash that is the name of the file of an event.
const hashSize = 16

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
	for _, part := range []string{string(e.Kind), e.Sub, e.Tool, e.Call, e.Text, string(e.Input), string(e.Output)} {
		fmt.Fprintf(sum, "%d %s", len(part), part)
	}
	dir, err := openReceived(gitDir, e.Session)
	if err != nil {
		return false, err
	}
	defer dir.Close()
	if err := removeOld(dir, now); err != nil {
		return false, err
	}
	file := hex.EncodeToString(sum.Sum(nil)[:hashSize])
	f, err := dir.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(string(e.Agent))
		return false, errors.Join(err, f.Close())
	}
	if !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	text, err := readReceived(dir, file)
	if err != nil {
		return false, missingIsFine(err)
	}
	// The file is empty if the other hook was killed, and has perhaps not recorded the event.
	if text != string(e.Agent) {
		return text != "", nil
	}
	return false, missingIsFine(dir.Chtimes(file, now, now)) // the agent does the same again
}

// openReceived opens the directory of a conversation that receivedDir returns, and creates it if it is missing. A
// container may be able to replace the directory by a symbolic link, but not to make openReceived leave gitDir.
func openReceived(gitDir, conversation string) (*os.Root, error) {
	root, err := os.OpenRoot(gitDir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	dir, err := filepath.Rel(gitDir, receivedDir(gitDir, conversation))
	if err == nil {
		err = root.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return nil, err
	}
	return root.OpenRoot(dir)
}

// readReceived returns the contents of a file in the directory dir, which must be a small regular file.
func readReceived(dir *os.Root, name string) (string, error) {
	f, err := dir.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", err
	}
	text, err := disk.ReadLimited(f, 100)
	return string(text), err
}

// removeOld removes the files of events that were received long before the time now, or after it, because the clock was
// set back. It removes no other files.
func removeOld(dir *os.Root, now time.Time) error {
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if sum, err := hex.DecodeString(name); err != nil || len(sum) != hashSize {
			continue
		}
		info, err := dir.Lstat(name)
		if err != nil || now.Sub(info.ModTime()).Abs() < repeatTime {
			continue // another hook has removed the file, or the event is new
		}
		if err := missingIsFine(dir.Remove(name)); err != nil {
			return err
		}
	}
	return nil
}

// receivedDir returns the path of the directory with the events of a conversation that were received lately.
func receivedDir(gitDir, conversation string) string {
	return turnFile(gitDir, conversation) + ".received"
}
