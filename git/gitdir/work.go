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

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/guard"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// sealName is the file that records the state of a git directory when it was created: a hash of HEAD, refs,
// configuration, hooks and other files, and the checksum of the index. If the state is still the same later, the git
// directory contains no changes of the user, so it need not be kept, because it can be created again from the remote.
// The hash leaves out files that change without the user, or that contain no changes of the user: remote-tracking refs
// and the remote's tags, the list of shallow commits, objects (see HasOwnObjects), logs, files of artifactfs, and files
// that git commands leave for later commands. If the recorded state differs only in the index, the tree of the index is
// compared with HEAD.
const sealName = "artifactfs-made"

// ignored lists the files and directories that the hash in the file sealName leaves out, by their paths in the git
// directory.
var ignored = []string{
	"index", "logs", "objects", "packed-refs", "shallow", "FETCH_HEAD", "ORIG_HEAD", "COMMIT_EDITMSG", "gc.log", "gc.pid",
	"refs/remotes",
}

// Seal records the state of the new git directory, so that HasWork can later detect whether the state has changed. It
// is called once, when the directory is complete.
func (d *Dir) Seal() error {
	sum, err := sumOf(d.path)
	if err != nil {
		return fmt.Errorf("record state of the git directory: %w", err)
	}
	index, err := indexSum(d.path)
	if err != nil {
		return fmt.Errorf("record state of the git directory: %w", err)
	}
	return disk.WriteFile(filepath.Join(d.path, sealName), []byte(sum+" "+index+"\n"), 0o644)
}

// Sealed reports whether Seal was called for the git directory.
func (d *Dir) Sealed() bool {
	_, err := os.Lstat(filepath.Join(d.path, sealName))
	return err == nil
}

// HasWork reports whether a git directory contains data that cannot be fetched from the remote: objects, refs, settings
// or staged changes. If Seal was never called for the directory, because the directory does not exist or is incomplete,
// HasWork considers only the objects.
func HasWork(ctx context.Context, path string) (bool, error) {
	if own, err := HasOwnObjects(path); own || err != nil {
		return own, err
	}
	seal, err := disk.ReadRegular(filepath.Join(path, sealName), disk.SmallFile)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("check the git directory for changes: %w", err)
	}
	sum, err := sumOf(path)
	if err != nil {
		return false, fmt.Errorf("check the git directory for changes: %w", err)
	}
	wasSum, wasIndex, _ := strings.Cut(strings.TrimSpace(string(seal)), " ")
	if sum != wasSum {
		return true, nil
	}
	index, err := indexSum(path)
	if err != nil {
		return false, fmt.Errorf("check the git directory for changes: %w", err)
	}
	return index != wasIndex && staged(ctx, path), nil
}

// staged reports whether the index differs from HEAD's tree. A changed index file does not prove such a difference,
// because git rewrites the index even to refresh stat data. If git fails, staged returns true, so that no changes are
// lost.
func staged(ctx context.Context, path string) bool {
	// Pass the git directory as --work-tree and not the mount: git accesses this path, and the mount may not be served
	// yet.
	r, err := guard.Open(ctx, path)
	if err != nil {
		return true
	}
	r.Cwd, r.Options, r.Env = path, []string{"--work-tree", path, "-c", "core.fsmonitor=false"}, []string{gitcmd.NoFetch}
	return r.Command(ctx, "diff-index", "--cached", "--quiet", "HEAD", "--").Run() != nil
}

// sumOf returns a hash of the files in the directory, except those in ignored and the files of artifactfs.
func sumOf(path string) (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(path, func(name string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // git creates and removes lock files during the walk
			return nil
		}
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(path, name)
		if err != nil {
			return err
		}
		if slices.Contains(ignored, relative) || relative == insideDir || strings.HasPrefix(relative, "artifactfs-") ||
			strings.HasPrefix(relative, "fsmonitor--daemon") {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if !e.Type().IsRegular() || strings.HasSuffix(relative, ".lock") {
			return nil
		}
		content, err := disk.ReadRegular(name, disk.LargeFile)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		// Leave out the settings that contain the mount's directory, because the mount may have been moved to another
		// directory.
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

// withoutPlaces returns the configuration without the settings that change when the mount is moved to another
// directory.
func withoutPlaces(config []byte) []byte {
	var kept []byte
	for line := range bytes.Lines(config) {
		if !isPlace(string(line)) {
			kept = append(kept, line...)
		}
	}
	return kept
}

// packedSum returns the packed refs that belong to the user. If artifactfs has written the file packed-refs, packedSum
// leaves out the remote's tags. If git has written the file, the remote's tags cannot be distinguished from the user's
// tags.
func packedSum(path string) ([]byte, error) {
	text, err := disk.ReadRegular(filepath.Join(path, "packed-refs"), disk.LargeFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	refs, err := packedrefs.Decode(text)
	if err != nil {
		return nil, err
	}
	var own bytes.Buffer
	for _, r := range refs {
		if !strings.HasPrefix(r.Name, "refs/remotes/") &&
			!(packedrefs.Ours(text) && strings.HasPrefix(r.Name, "refs/tags/")) {
			fmt.Fprintf(&own, "%s %s\n", r.ID, r.Name)
		}
	}
	return own.Bytes(), nil
}

// indexSum returns the checksum at the end of the index file, or "" if there is no index.
func indexSum(path string) (string, error) {
	f, err := disk.OpenRegular(filepath.Join(path, "index"), 0)
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
