package gitdir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/internal/clock"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// ErrRefsLocked means that another git process is changing packed-refs, or was killed while it changed this file.
var ErrRefsLocked = errors.New("packed-refs.lock exists: another git process is running, or was killed")

// AddTracking adds remote-tracking branches that the directory lacks. symbolic has the targets of those that are
// symbolic refs, by their names. Existing refs keep their values, because git or the user may have changed them. Refs
// of the mounted remote are left out (SetRefs), as are refs whose names would be directories of existing ones, or the
// other way round. git commands may be running.
func (d *Dir) AddTracking(ctx context.Context, refs []packedrefs.Ref, symbolic map[string]string) (err error) {
	if len(refs) == 0 {
		return nil
	}
	d.packed.Lock()
	defer d.packed.Unlock()
	for until := time.Now().Add(lockWait); ; {
		if ok, err := takeLock(d.path, "packed-refs"); ok {
			break
		} else if err != nil {
			return err
		}
		if time.Now().After(until) {
			return ErrRefsLocked
		}
		if !clock.Wait(ctx, lockLook) {
			return ctx.Err()
		}
	}
	path := filepath.Join(d.path, "packed-refs")
	defer func() { err = errors.Join(err, os.Remove(path+".lock")) }()
	text, err := disk.ReadRegular(path, disk.LargeFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("add refs: %w", err)
	}
	all, err := packedrefs.Decode(text)
	if err != nil {
		return fmt.Errorf("add refs: %w", err)
	}
	taken, err := trackingNames(d.path, all)
	if err != nil {
		return fmt.Errorf("add refs: %w", err)
	}
	own, before := refname.Tracking(d.path, ""), len(all)
	for _, r := range refs {
		if !strings.HasPrefix(r.Name, "refs/remotes/") || strings.HasPrefix(r.Name, own) || !taken.add(r.Name) {
			continue
		}
		if to := symbolic[r.Name]; to == "" {
			all = append(all, r)
		} else if err := writeSymbolic(filepath.Join(d.path, r.Name), to); err != nil {
			return fmt.Errorf("add refs: %w", err)
		}
	}
	if len(all) == before {
		return nil
	}
	return disk.WriteFile(path, packedrefs.Encode(text, all), 0o644)
}

// writeSymbolic writes a symbolic ref that does not exist. path is its file.
func writeSymbolic(path, to string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return disk.WriteFile(path, []byte("ref: "+to+"\n"), 0o644)
}

// names has the names of refs, with the value true, and of the directories above them, with the value false.
type names map[string]bool

// trackingNames returns the names of the remote-tracking branches of the git directory at dir. packed are the refs in
// packed-refs.
func trackingNames(dir string, packed []packedrefs.Ref) (names, error) {
	taken := names{}
	for _, r := range packed {
		if strings.HasPrefix(r.Name, "refs/remotes/") {
			taken.add(r.Name)
		}
	}
	root := filepath.Join(dir, "refs", "remotes")
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && !strings.HasSuffix(path, ".lock") {
			taken.add("refs/remotes" + strings.TrimPrefix(path, root))
		}
		if errors.Is(err, fs.ErrNotExist) { // git removes empty directories
			return nil
		}
		return err
	})
	return taken, err
}

// add adds the name of a ref. It returns false if the ref cannot be added because of another one.
func (n names) add(name string) bool {
	if _, ok := n[name]; ok {
		return false
	}
	for i := len("refs/remotes"); i >= 0; {
		if n[name[:i]] {
			return false
		}
		next := strings.IndexByte(name[i+1:], '/')
		if next < 0 {
			break
		}
		i += 1 + next
	}
	n[name] = true
	for i := strings.LastIndexByte(name, '/'); i > len("refs/remotes"); i = strings.LastIndexByte(name[:i], '/') {
		n[name[:i]] = false
	}
	return true
}
