// Package gitdir makes the git directory of a mount: HEAD at the requested branch or commit, the remote as `origin`, objects
// borrowed from the store through alternates, the list of shallow commits while the history is incomplete, and an index in which
// every file of the new working tree is recorded as unchanged.
//
// Stock git reads it like any other git directory. Files follow git's gitrepository-layout.
//
// # What differs from a clone
//
// These files differ from those of `git clone --filter=blob:none`:
//   - objects: only what git commands create. objects/info/alternates names the store, whose commit-graph git reads too.
//   - refs/heads/NAME: the requested branch is in packed-refs with the others, and becomes a loose ref when it moves.
//   - logs/refs/heads/NAME: exists, as with git 2.39. git 2.55 writes only that of HEAD.
//   - config: core.worktree, since the directory is not in the working tree. gc.auto and maintenance.auto are off, since
//     artifactfs maintains the packs. A remote named artifactfs, which git asks for missing objects. `git remote` lists it,
//     because neither git 2.39 nor 2.55 can hide a remote. It has no refs, and `git fetch --all` skips it.
//   - artifactfs: if the git directory is visible inside the mount, the directory on which the store and programs are mounted.
//     core.worktree is then not set.
//   - artifactfs-config: settings for the mount's working tree, but not for other worktrees (`git worktree add`). config
//     includes it on the condition that this is the git directory.
//   - artifactfs-control: socket of the session's API for processes inside the mount (package control, guest.go).
//   - artifactfs-logins: settings that make git ask the daemon for logins; included by config.
//   - artifactfs-fsmonitor or artifactfs-fsmonitor-careful: the fsmonitor hook for git before 2.55.
//   - fsmonitor--daemon.ipc and its lock: the socket of the fsmonitor for later versions.
//
// git init itself creates what it puts into every repository: description, hooks, info/exclude, and the user's template.
package gitdir

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/config"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/object"
)

// Options are the properties of a git directory, for Create, Open and Reopen.
type Options struct {
	Format   object.Format // object format of the repository
	WorkTree string        // absolute path of the mount's root
	Remote   string        // URL of the remote without secrets
	Objects  string        // the store's objects directory
	Ref      string        // full name of the branch or tag that was requested; "" for a commit ID
	Commit   object.ID     // commit of Ref; zero: a branch without a commit
	Shallow  []object.ID   // commits whose parents are missing in the store
	Partial  bool          // the remote can supply objects that the store lacks
	Default  string        // full name of the remote's default branch; "": not known

	Git     Version // version of the installed git; zero: git is not installed
	Monitor string  // path of the hook program for gits that cannot connect to the monitor's socket; "": no monitor for them
	// Helper is the path of the artifactfs command, which git runs to fetch missing objects; "": git asks the remote.
	Helper string
	Inside bool    // the directory is mounted at .git in the working tree; see insideDir
	Logins []Login // remotes that the daemon has logins for

	Session   string                        // objects directory of a session, borrowed from like Objects; "": none
	State     *State                        // state that the new directory starts with; nil: that of a fresh clone
	Committer func(commit object.ID) string // committer of a commit, "NAME <EMAIL> SECONDS ZONE"; nil or "": not known
}

// Dir is a git directory on disk. Git commands may change the directory at any time.
type Dir struct {
	path, workTree string // of the git directory, and of the mount's root
	format         object.Format
	head           packedrefs.Ref // branch that was requested; no name if HEAD was detached
}

// Create creates the git directory at path. The directory must not exist, or be a part that a crashed Create has
// left: one for which Open returns false.
func Create(path string, o Options) (*Dir, error) {
	if o.Commit.IsZero() { // git clone sets no origin/HEAD if the default branch has no commit
		o.Default = ""
	}
	d := o.dir(path)
	head := o.Commit.String() + "\n"
	if d.head.Name != "" {
		head = "ref: " + o.Ref + "\n"
	}
	var err error
	// A State may have HEAD on another branch than the requested one, or detached.
	if o.State != nil {
		if head, err = o.stateHead(); err != nil {
			return nil, fmt.Errorf("make git directory: %w", err)
		}
		d.head = packedrefs.Ref{}
	}
	c, err := fromTemplate(path, o)
	if err != nil {
		return nil, fmt.Errorf("make git directory: %w", err)
	}
	cfg, err := o.configure(c, path)
	if err != nil {
		return nil, fmt.Errorf("make git directory: %w", err)
	}
	for _, dir := range []string{"objects/info", "objects/pack", "refs/heads", "refs/tags", "info"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(path, dir), 0o755))
	}
	err = errors.Join(err,
		o.borrow(path),
		os.WriteFile(filepath.Join(path, "config"), cfg, 0o644),
		o.setMonitor(path),
		o.SetLogins(path),
		d.SetShallow(o.Shallow),
		o.writeRefs(d, path),
		d.SetDefault(o.Default),
		disk.WriteFile(filepath.Join(path, "HEAD"), []byte(head), 0o644)) // last: HEAD makes it a repository
	if err != nil {
		return nil, fmt.Errorf("make git directory: %w", err)
	}
	return d, nil
}

// writeRefs writes the refs of a new git directory and the first entries of their reflogs.
func (o Options) writeRefs(d *Dir, path string) error {
	if o.State != nil {
		return o.writeState(path)
	}
	return errors.Join(d.SetRefs(nil), o.writeLogs(path))
}

// dir returns the Dir at path, without a look at the disk.
func (o Options) dir(path string) *Dir {
	d := &Dir{path: path, workTree: o.WorkTree, format: o.Format}
	if strings.HasPrefix(o.Ref, "refs/heads/") {
		d.head = packedrefs.Ref{Name: o.Ref, ID: o.Commit}
	}
	return d
}

// Open opens the git directory at path, which git and the user may have changed since it was created. It returns
// false if there is none. Open updates only what depends on the paths of mount, store and programs, the logins, and
// the list of shallow commits.
func Open(path string, o Options) (*Dir, bool, error) {
	if _, err := os.Lstat(filepath.Join(path, "HEAD")); err != nil { // Create writes it last
		return nil, false, nil
	}
	name := filepath.Join(path, "config")
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, false, fmt.Errorf("open git directory: %w", err)
	}
	c := config.New()
	if err := config.NewDecoder(bytes.NewReader(text)).Decode(c); err != nil {
		return nil, false, fmt.Errorf("open git directory: read %s: %w", name, err)
	}
	if o.setPlaces(c, path) {
		var b bytes.Buffer
		err = config.NewEncoder(&b).Encode(c)
		err = errors.Join(err, disk.WriteFile(name, b.Bytes(), 0o644))
	}
	d := o.dir(path)
	err = errors.Join(err, o.borrow(path),
		o.setMonitor(path),
		o.SetLogins(path),
		d.SetShallow(o.Shallow)) // the store may have been created again, with less history
	if err != nil {
		return nil, false, fmt.Errorf("open git directory: %w", err)
	}
	return d, true, nil
}

// Reopen returns the git directory at path after a takeover. Another process has opened it for the same mount and git
// commands may be using it, so nothing in it is changed.
func Reopen(path string, o Options) *Dir { return o.dir(path) }

// HasOwnObjects reports whether a git directory holds objects that were not fetched from a remote: loose objects, or
// packs without a .promisor file.
func HasOwnObjects(path string) (bool, error) {
	objects := filepath.Join(path, "objects")
	for _, pattern := range []string{"pack/*.pack", "[0-9a-f][0-9a-f]/*"} {
		found, err := filepath.Glob(filepath.Join(quoteGlob.Replace(objects), pattern))
		if err != nil {
			return false, fmt.Errorf("look for objects: %w", err)
		}
		for _, f := range found {
			if _, err := os.Lstat(strings.TrimSuffix(f, ".pack") + ".promisor"); err != nil || !strings.HasSuffix(f, ".pack") {
				return true, nil
			}
		}
	}
	return false, nil
}

// quoteGlob escapes the special characters of filepath.Glob patterns.
var quoteGlob = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

// SetShallow replaces the list of commits whose parents are missing (gitrepository-layout(5), "shallow").
func (d *Dir) SetShallow(ids []object.ID) error {
	path := filepath.Join(d.path, "shallow")
	if len(ids) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	var text strings.Builder
	for _, id := range ids {
		text.WriteString(id.String() + "\n")
	}
	return disk.WriteFile(path, []byte(text.String()), 0o644)
}

// SetRefs replaces the remote-tracking branches refs/remotes/origin/* and adds the remote's tags. The requested
// branch is always among the refs. Branches and tags that exist already keep their values, whether they are packed or
// loose: git or the user may have changed them.
func (d *Dir) SetRefs(remote []packedrefs.Ref) error {
	path := filepath.Join(d.path, "packed-refs")
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write refs: %w", err)
	}
	packed, err := packedrefs.Decode(text)
	if err != nil {
		return fmt.Errorf("write refs: %w", err)
	}
	var refs []packedrefs.Ref
	kept := map[string]bool{}
	for _, r := range packed {
		// A remote-tracking branch that the remote no longer has is dropped.
		if !strings.HasPrefix(r.Name, "refs/remotes/origin/") {
			refs, kept[r.Name] = append(refs, r), true
		}
	}
	if d.head.Name != "" && !d.head.ID.IsZero() && !kept[d.head.Name] {
		refs = append(refs, d.head)
	}
	tracking := false
	for _, r := range remote {
		if branch, ok := strings.CutPrefix(r.Name, "refs/heads/"); ok {
			r.Name = "refs/remotes/origin/" + branch
		} else if !strings.HasPrefix(r.Name, "refs/tags/") || kept[r.Name] {
			continue
		}
		tracking = tracking || r.Name == d.tracking()
		refs = append(refs, r)
	}
	// The list is empty if it was not fetched yet, and may lack the requested branch.
	if !tracking && len(refs) > 0 && d.head.Name != "" {
		refs = append(refs, packedrefs.Ref{Name: d.tracking(), ID: d.head.ID})
	}
	return disk.WriteFile(path, packedrefs.Encode(text, refs), 0o644)
}

// originHead is the symbolic ref to the remote's default branch.
const originHead = "refs/remotes/origin/HEAD"

// SetDefault sets refs/remotes/origin/HEAD to the remote's default branch, a full name; "" if that is not known or
// has no commit. It keeps an existing one, as git fetch does.
func (d *Dir) SetDefault(branch string) error {
	name, ok := strings.CutPrefix(branch, "refs/heads/")
	if !ok {
		return nil
	}
	path := filepath.Join(d.path, originHead)
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return disk.WriteFile(path, []byte("ref: refs/remotes/origin/"+name+"\n"), 0o644)
}

// tracking returns the remote-tracking branch of the requested branch.
func (d *Dir) tracking() string {
	return "refs/remotes/origin/" + strings.TrimPrefix(d.head.Name, "refs/heads/")
}
