// Package gitdir makes the native git directory of a mount: HEAD on what was asked for, the remote as `origin`,
// objects borrowed from the store through alternates, shallow marks while history is not complete, and an index that says
// of the untouched working tree that it is untouched.
//
// Stock git reads it like any other git directory. Files follow git's gitrepository-layout.
//
// # What differs from a clone
//
// Of the files that `git clone --filter=blob:none` leaves, these are others:
//   - objects: none but what git makes; objects/info/alternates names the store, from which git also takes the commit-graph.
//   - refs/heads/NAME: the branch asked for is in packed-refs with the others, and becomes a loose one when it moves.
//   - logs/refs/heads/NAME: as git 2.39 writes it; 2.55 has that of HEAD only.
//   - config: core.worktree, since the directory is elsewhere; gc.auto and maintenance.auto, since packs are looked after by
//     artifactfs; a remote named artifactfs, of which git asks for objects it lacks. `git remote` lists it, as every remote in
//     the configuration: there is no setting against that in 2.39 nor 2.55. It has no refs, and `git fetch --all` leaves it out.
//   - artifactfs: a directory with what is elsewhere and needed, where the git directory is seen inside the mount; then
//     core.worktree is missing.
//   - artifactfs-config: what is set for the mount's working tree and not for others of the repository (`git worktree add`),
//     included by config on the condition of this git directory.
//   - artifactfs-control: the socket at which a session is asked from inside of its mount (package control, guest.go).
//   - artifactfs-logins: settings that have git ask the daemon for logins, included by config.
//   - artifactfs-fsmonitor, or artifactfs-fsmonitor-careful: the hook of gits before 2.55; fsmonitor--daemon.ipc and its lock: what later ones ask.
//
// What git init puts into every repository (description, hooks, info/exclude, the user's template) is put there by git init.
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

// Options describe a git directory.
type Options struct {
	Format   object.Format
	WorkTree string // the mount's directory
	Remote   string // URL without secrets
	Objects  string // the store's objects directory
	Ref      string // full name of the branch or tag asked for; "" for a commit id
	Commit   object.ID
	Shallow  []object.ID
	Partial  bool   // the remote gives out later what the store lacks now
	Default  string // full name of the remote's default branch; "": not known

	Git     Version // the installed git; zero: none
	Monitor string  // program that answers gits which cannot ask the monitor's socket; "": none, and no monitor for them
	// Helper is the artifactfs command that git runs for objects it lacks; "": git asks the remote.
	Helper string
	Inside bool // it is mounted at .git in the working tree, as inside.go has it
	Logins []Login

	Session   string                        // objects directory of a session that is borrowed from too; "": none
	State     *State                        // what the new directory is to be like; nil: like a clone
	Committer func(commit object.ID) string // "NAME <EMAIL> SECONDS ZONE" of a commit of State; nil, or "": it is not known
}

// Dir is a git directory on disk.
type Dir struct {
	path, workTree string
	format         object.Format
	head           packedrefs.Ref // the branch asked for; no name if HEAD is detached
}

// Create makes the git directory at path, which must not exist but in parts: Open tells.
func Create(path string, o Options) (*Dir, error) {
	if o.Commit.IsZero() { // clone links origin/HEAD to no branch that is not born
		o.Default = ""
	}
	d := o.dir(path)
	head := o.Commit.String() + "\n"
	if d.head.Name != "" {
		head = "ref: " + o.Ref + "\n"
	}
	var err error
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
		disk.WriteFile(filepath.Join(path, "HEAD"), []byte(head), 0o644)) // last: git takes it for a repository now
	if err != nil {
		return nil, fmt.Errorf("make git directory: %w", err)
	}
	return d, nil
}

// writeRefs writes the refs of a new git directory and begins their logs.
func (o Options) writeRefs(d *Dir, path string) error {
	if o.State != nil {
		return o.writeState(path)
	}
	return errors.Join(d.SetRefs(nil), o.writeLogs(path))
}

func (o Options) dir(path string) *Dir {
	d := &Dir{path: path, workTree: o.WorkTree, format: o.Format}
	if strings.HasPrefix(o.Ref, "refs/heads/") {
		d.head = packedrefs.Ref{Name: o.Ref, ID: o.Commit}
	}
	return d
}

// Open goes on with the git directory at path, whatever has been done to it since it was created; false: there is none.
// Only what depends on where the mount and the store are is set anew.
func Open(path string, o Options) (*Dir, bool, error) {
	if _, err := os.Lstat(filepath.Join(path, "HEAD")); err != nil { // it is written last
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
		d.SetShallow(o.Shallow)) // what the store lacks now; it may have been made anew
	if err != nil {
		return nil, false, fmt.Errorf("open git directory: %w", err)
	}
	return d, true, nil
}

// GoOn is the git directory at path, which another process has opened for the same mount and which commands may be using:
// nothing in it is touched.
func GoOn(path string, o Options) *Dir { return o.dir(path) }

// HasOwnObjects says whether a git directory holds objects that no remote has given: loose ones, or packs without the
// mark of a partial clone's remote.
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

var quoteGlob = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

// SetShallow records the commits whose parents are missing; none removes the mark.
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

// SetRefs writes the remote's branches as `refs/remotes/origin/*` and its tags. The branch asked for is always
// there; what git made since wins over it and over tags, whether loose or packed.
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
	if !tracking && len(refs) > 0 && d.head.Name != "" {
		refs = append(refs, packedrefs.Ref{Name: d.tracking(), ID: d.head.ID})
	}
	return disk.WriteFile(path, packedrefs.Encode(text, refs), 0o644)
}

const originHead = "refs/remotes/origin/HEAD"

// SetDefault tells the remote's default branch, by its full name, for refs/remotes/origin/HEAD; "": not known, or not born.
// One that is there stays, as it does with git.
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

func (d *Dir) tracking() string {
	return "refs/remotes/origin/" + strings.TrimPrefix(d.head.Name, "refs/heads/")
}
