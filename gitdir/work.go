package gitdir

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/gitcmd"
	"github.com/artifactfs/artifactfs/internal/packedrefs"
)

// A git directory that nobody worked in can be made again from the remote, and is not kept. Seal notes what it was when
// it was made: a sum over HEAD, loose and packed refs, configuration, hooks and whatever else lies there. Left out is what
// moves by itself or says nothing of its own: remote-tracking refs and the remote's tags, shallow marks, objects (see
// HasOwnObjects), logs, what artifactfs has there itself, and files that commands leave behind for their successors. The
// index is compared with HEAD.
const sealName = "artifactfs-made"

var ignored = []string{
	"index", "logs", "objects", "packed-refs", "shallow", "FETCH_HEAD", "ORIG_HEAD", "COMMIT_EDITMSG", "gc.log", "gc.pid", "refs/remotes",
}

// Seal notes that nobody has worked in the git directory yet. It is called once, when all of it is written.
func (d *Dir) Seal() error {
	sum, err := sumOf(d.path)
	if err != nil {
		return fmt.Errorf("seal git directory: %w", err)
	}
	index, err := indexSum(d.path)
	if err != nil {
		return fmt.Errorf("seal git directory: %w", err)
	}
	return disk.WriteFile(filepath.Join(d.path, sealName), []byte(sum+" "+index+"\n"), 0o644)
}

// Sealed says whether Seal was called.
func (d *Dir) Sealed() bool {
	_, err := os.Lstat(filepath.Join(d.path, sealName))
	return err == nil
}

// HasWork says whether a git directory holds anything that the remote could not give again: objects, refs, settings, or
// what was staged. One that does not exist, or was not finished, holds none but objects.
func HasWork(ctx context.Context, path string) (bool, error) {
	if own, err := HasOwnObjects(path); own || err != nil {
		return own, err
	}
	seal, err := os.ReadFile(filepath.Join(path, sealName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for work: %w", err)
	}
	sum, err := sumOf(path)
	if err != nil {
		return false, fmt.Errorf("look for work: %w", err)
	}
	wasSum, wasIndex, _ := strings.Cut(strings.TrimSpace(string(seal)), " ")
	if sum != wasSum {
		return true, nil
	}
	index, err := indexSum(path)
	if err != nil {
		return false, fmt.Errorf("look for work: %w", err)
	}
	return index != wasIndex && staged(ctx, path), nil
}

// staged says whether the index has another tree than HEAD. git rewrites it for its own purposes, too. What cannot be
// told may be work.
func staged(ctx context.Context, path string) bool {
	// Not the mount's working tree: nobody may serve it yet, and git would look there though it need not.
	cmd := gitcmd.New(ctx, "--git-dir", path, "--work-tree", path, "-c", "core.fsmonitor=false", "diff-index", "--cached", "--quiet", "HEAD", "--")
	cmd.Dir, cmd.Env = path, append(cmd.Env, Borrowing(path)...)
	return cmd.Run() != nil
}

// sumOf sums up everything in the directory that is not ignored.
func sumOf(path string) (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(path, func(name string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // git's lock files come and go
			return nil
		}
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(path, name)
		if err != nil {
			return err
		}
		if slices.Contains(ignored, relative) || relative == insideDir || strings.HasPrefix(relative, "artifactfs-") || strings.HasPrefix(relative, "fsmonitor--daemon") {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if !e.Type().IsRegular() || strings.HasSuffix(relative, ".lock") {
			return nil
		}
		content, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if relative == "config" {
			content = withoutPlaces(content)
		}
		fmt.Fprintf(h, "%s\x00%d\x00%s", relative, len(content), content)
		return err
	})
	if err != nil {
		return "", err
	}
	packed, err := packedSum(path)
	if err != nil {
		return "", err
	}
	h.Write(packed)
	return hex.EncodeToString(h.Sum(nil)), nil
}

// withoutPlaces leaves out the settings that follow the mount to another directory.
func withoutPlaces(config []byte) []byte {
	var kept []byte
	for line := range bytes.Lines(config) {
		if !isPlace(string(line)) {
			kept = append(kept, line...)
		}
	}
	return kept
}

// packedSum is about the packed refs that are the user's. Which tags those are can no longer be told once git has
// written the file.
func packedSum(path string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(path, "packed-refs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	refs, err := packedrefs.Decode(text)
	if err != nil {
		return nil, err
	}
	var own bytes.Buffer
	for _, r := range refs {
		if !strings.HasPrefix(r.Name, "refs/remotes/") && !(packedrefs.Ours(text) && strings.HasPrefix(r.Name, "refs/tags/")) {
			fmt.Fprintf(&own, "%s %s\n", r.ID, r.Name)
		}
	}
	return own.Bytes(), nil
}

// indexSum identifies an index by the hash that it ends with; "" if there is none.
func indexSum(path string) (string, error) {
	f, err := os.Open(filepath.Join(path, "index"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	var end [32]byte
	st, err := f.Stat()
	if err == nil && st.Size() >= int64(len(end)) {
		_, err = f.ReadAt(end[:], st.Size()-int64(len(end)))
	}
	return hex.EncodeToString(end[:]), err
}
