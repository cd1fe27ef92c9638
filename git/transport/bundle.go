package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// A bundle is a file with the objects and refs of a repository (gitformat-bundle). git's upload-pack cannot read
// bundles. Therefore a bundle is unpacked into a bare repository in the directory that Options.BundleDir returns. There
// is one repository for each state of the file.

// bundleMark begins every bundle of version 2 and later.
const bundleMark = "# v"

// isBundle reports whether path is a bundle.
func isBundle(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return false
	}
	first := make([]byte, len("# v2 git bundle\n"))
	if _, err := io.ReadFull(f, first); err != nil {
		return false
	}
	return bytes.HasPrefix(first, []byte(bundleMark)) && bytes.HasSuffix(first, []byte(" git bundle\n"))
}

// repository returns the path of the repository that a service reads: path itself, or the repository into which the
// bundle at path is unpacked. A bundle is unpacked again after it has changed. A bundle is never written.
func (n *connector) repository(ctx context.Context, path string, s service) (string, error) {
	if s != uploadPack || n.opts.BundleDir == nil || !isBundle(path) {
		return path, nil
	}
	repo, err := n.unpackBundle(ctx, path)
	if err != nil {
		return "", fmt.Errorf("unpack bundle %s: %w", path, err)
	}
	return repo, nil
}

// unpackBundle returns the path of the repository of the bundle at path, and removes the repositories of earlier states
// of the file.
func (n *connector) unpackBundle(ctx context.Context, path string) (string, error) {
	dir := n.opts.BundleDir(n.url)
	info, err := os.Stat(path)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return "", err
	}
	unlock, err := disk.Lock(filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	repo := filepath.Join(dir, fmt.Sprintf("%d-%d.git", info.ModTime().UnixNano(), info.Size()))
	if _, err := os.Stat(repo); err == nil {
		return repo, nil
	}
	earlier, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	for _, e := range earlier {
		if e.IsDir() {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	if err != nil {
		return "", err
	}
	part := repo + ".part"
	// A mirror has all refs of the bundle under their own names, and the HEAD that a clone of the bundle would have.
	cmd := n.opts.Env.Git(ctx, "clone", "-q", "--mirror", path, part)
	var stderr tail
	cmd.Dir, cmd.Stderr = "/", &stderr
	if err := cmd.Run(); err != nil {
		return "", errors.Join(fmt.Errorf("%w: git clone: %s", ErrNotFound, plain(stderr.bytes())), os.RemoveAll(part))
	}
	return repo, os.Rename(part, repo)
}
