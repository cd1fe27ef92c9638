// Package gitdir creates the git directory of a mount. In this directory, HEAD is at the requested branch or commit,
// the remote is named as by git clone, the objects of the store are used through alternates, and the index records
// every file of the new working tree as unchanged. While the history is incomplete, the directory lists the shallow
// commits.
//
// Stock git can use the directory like any other. The files have the formats of git's gitrepository-layout(5).
//
// # What differs from a clone
//
// The files differ from those of `git clone --filter=blob:none` as follows:
//   - objects: contains only objects that git commands create. objects/info/alternates names the store, whose
//     commit-graph git reads too.
//   - refs/heads/NAME: the requested branch is in packed-refs, like the other refs. When the branch moves, git writes
//     it as a loose ref.
//   - logs/refs/heads/NAME: exists, as with git 2.39. git 2.55 writes only the reflog of HEAD.
//   - config: sets core.worktree, because the git directory is not in the working tree. gc.auto and maintenance.auto
//     are off, because artifactfs maintains the packs. It has a remote named artifactfs, from which git requests
//     missing objects. `git remote` lists this remote, because neither git 2.39 nor 2.55 can hide a remote. The remote
//     has no refs, and `git fetch --all` skips it.
//   - artifactfs: exists if the git directory is visible inside the mount. The store and programs are mounted on this
//     directory. core.worktree is not set in this case.
//   - artifactfs-config: settings for the mount's working tree, but not for other worktrees (`git worktree add`).
//     config includes this file on the condition that this is the git directory.
//   - artifactfs-control: socket on which processes inside the mount can use the session's API (package control).
//   - artifactfs-logins: settings that make git request logins from the daemon. config includes this file.
//   - fsmonitor--daemon.ipc and its lock: the socket of the file system monitor. git before 2.55 asks through a hook,
//     which is a link beside the git directory (query.Beside).
//
// The files that git puts into every repository are created by git init: description, hooks, info/exclude, and the
// user's template.
package gitdir

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/go-git/go-git/v5/plumbing/format/config"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// Options are the properties of a git directory. Create, Open and Reopen use them.
type Options struct {
	// Environment is the environment of the user whose configuration applies to git commands on the directory; empty: that
	// of this process.
	Environment []string

	Format   object.Format // object format of the repository
	WorkTree string        // absolute path of the root of the mount
	Remote   string        // URL of the remote without secrets
	Called   string        // name that a new directory gives to the remote (clone.defaultRemoteName); "": origin
	Objects  string        // the store's objects directory
	Ref      string        // full name of the requested branch or tag; "" if a commit id was requested
	Commit   object.ID     // commit that Ref points to, or the requested commit; zero if the branch has no commit
	Shallow  []object.ID   // commits whose parents are not in the store
	Partial  bool          // whether the remote is a promisor: it can supply objects that the store lacks
	Default  string        // full name of the remote's default branch; "" if it is not known

	Git Version // version of the installed git; zero if git is not installed
	// Monitor is the path of the hook program, for git versions that cannot connect to the monitor's socket. If Monitor is
	// "", these versions have no monitor.
	Monitor string
	// Helper is the path of the artifactfs command, which git runs to fetch missing objects. If Helper is "", git requests
	// missing objects from the remote.
	Helper  string
	Inside  bool    // whether the git directory is visible inside the mount, at .git in the working tree; see insideDir
	Streams bool    // Checkout.StreamsSmall
	Logins  []Login // remotes for which the daemon has logins

	// Session is the objects directory of a session, used through alternates like Objects; "" if there is none.
	Session string
	// State is the state with which the new directory starts; nil means the state of a fresh clone.
	State *State
	// Settings are further settings of the new directory (IgnoreSettings). They replace other settings of these names.
	Settings []Setting
	// Files are the contents of further files of the new directory, by their paths in it, and replace those of the user's
	// template. Those of the State replace them.
	Files map[string][]byte
	// Branch is the full name of a branch that Create adds at the commit of HEAD, and to which HEAD points instead of the
	// branch of Ref or State; "": none. A branch of the State with this name is moved.
	Branch string
	Detach bool // whether Create detaches HEAD
	// Committer returns the committer of a commit as "NAME <EMAIL> SECONDS ZONE", or "" if the committer is unknown.
	// Committer may be nil.
	Committer func(commit object.ID) string
	// Index writes the index of the directory (WriteIndex). Create and Open call Index if the directory has no index.
	// Until Index has succeeded, git does not recognize the directory as a git directory: with an empty index, git
	// would treat every path as removed, and the next commit would remove it. If Index is nil, the directory starts
	// without an index.
	Index func(d *Dir) error
	// Refs returns the branches and tags of the remote whose objects are in the store; in head, the full name of the
	// remote's default branch, if it is one of these refs; and in shallow, the commits whose parents are not in the
	// store. Create calls Refs after Index, because Refs may wait for the remote. If Refs is nil, the new directory
	// contains only the requested branch, and no other refs of the remote.
	Refs func() (refs []packedrefs.Ref, head string, shallow []object.ID)
}

// Dir is a git directory on disk. git commands may change the directory at any time.
type Dir struct {
	path   string // path of the git directory
	git    commands
	format object.Format
	head   packedrefs.Ref // the requested branch; its Name is "" if there is none

	packed sync.Mutex // held while this process reads and replaces packed-refs
}

// Create creates the git directory at path. If the directory exists, it must be the incomplete result of a call of
// Create during which the process died. For such a directory, Open returns false.
func Create(path string, o Options) (*Dir, error) {
	if o.Commit.IsZero() { // like git clone, do not set origin/HEAD if the default branch has no commit
		o.Default = ""
	}
	o, err := o.atBranch()
	if err != nil {
		return nil, fmt.Errorf("create git directory: %w", err)
	}
	d := o.dir(path)
	head := o.Commit.String() + "\n"
	if name := cmp.Or(o.Branch, d.head.Name); name != "" && !o.Detach {
		head = "ref: " + name + "\n"
	}
	// HEAD in a State may be detached, or on a branch other than the requested one.
	if o.State != nil {
		if head, err = o.stateHead(); err != nil {
			return nil, fmt.Errorf("create git directory: %w", err)
		}
		d.head = packedrefs.Ref{}
	}
	c, err := fromTemplate(path, o)
	if err != nil {
		return nil, fmt.Errorf("create git directory: %w", err)
	}
	if err := o.nameRemote(path); err != nil {
		return nil, fmt.Errorf("create git directory: %w", err)
	}
	cfg, err := o.configure(c, path)
	if err != nil {
		return nil, fmt.Errorf("create git directory: %w", err)
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
		o.writeFiles(path),
		o.writeRefs(d, path),
		d.SetDefault(o.Default))
	if err == nil && o.Index != nil {
		err = o.Index(d)
	}
	if err == nil && o.Refs != nil {
		err = d.addRefs(o)
	}
	if err == nil { // HEAD is written last, because a directory with HEAD is a repository
		err = disk.WriteFile(filepath.Join(path, "HEAD"), []byte(head), 0o644)
	}
	if err != nil {
		return nil, fmt.Errorf("create git directory: %w", err)
	}
	return d, nil
}

// nameRemote stores the name of the remote in a new git directory. If the State has remote-tracking branches, but none
// of a remote with the name o.Called, it takes the name from these, because on another host the user may have another
// setting.
func (o Options) nameRemote(path string) error {
	name := o.Called
	if !refname.ValidRemote(name) || name == helperRemote {
		name = refname.DefaultRemote
	}
	if o.State != nil {
		has := func(r packedrefs.Ref) bool { return strings.HasPrefix(r.Name, "refs/remotes/"+name+"/") }
		if rs := o.State.Remote; len(rs) > 0 && !slices.ContainsFunc(rs, has) {
			first, _, _ := strings.Cut(strings.TrimPrefix(rs[0].Name, "refs/remotes/"), "/")
			if refname.ValidRemote(first) && first != helperRemote {
				name = first
			}
		}
	}
	if name == refname.DefaultRemote {
		return nil
	}
	return disk.WriteFile(filepath.Join(path, refname.RemoteFile), []byte(name), 0o644)
}

// writeFiles writes the files in o.Files.
func (o Options) writeFiles(path string) (err error) {
	for name, text := range o.Files {
		// The template may have a symbolic link in the place of the file, whose target must not change.
		err = errors.Join(err, disk.WriteFileUnsynced(filepath.Join(path, filepath.FromSlash(name)), text, 0o644))
	}
	return err
}

// writeRefs writes the refs of a new git directory and the first entries of their reflogs.
func (o Options) writeRefs(d *Dir, path string) error {
	if o.State != nil {
		return o.writeState(path)
	}
	var err error
	if o.Branch != "" && !o.Commit.IsZero() {
		err = disk.WriteFile(filepath.Join(path, "packed-refs"),
			packedrefs.Encode(nil, []packedrefs.Ref{{Name: o.Branch, ID: o.Commit}}), 0o644)
	}
	return errors.Join(err, d.SetRefs(nil), o.writeLogs(path))
}

// addRefs adds the refs of the remote to a new git directory. Refs of a State keep their values.
func (d *Dir) addRefs(o Options) error {
	refs, head, shallow := o.Refs()
	if len(refs) == 0 {
		return nil
	}
	if o.State != nil {
		for _, r := range o.stateRefs(d.path) {
			if branch, ok := strings.CutPrefix(r.Name, refname.Tracking(d.path, "")); ok {
				name := "refs/heads/" + branch
				refs = slices.DeleteFunc(refs, func(r packedrefs.Ref) bool { return r.Name == name })
				refs = append(refs, packedrefs.Ref{Name: name, ID: r.ID})
			}
		}
	}
	return errors.Join(d.SetShallow(shallow), d.SetRefs(refs), d.SetDefault(head))
}

// dir returns a Dir for the git directory at path. It does not access the disk.
func (o Options) dir(path string) *Dir {
	d := &Dir{path: path, git: commands{path, o.WorkTree, o.Environment}, format: o.Format}
	if strings.HasPrefix(o.Ref, "refs/heads/") {
		d.head = packedrefs.Ref{Name: o.Ref, ID: o.Commit}
	}
	return d
}

// Open opens the git directory at path, which git and the user may have changed since it was created. It returns false
// if the directory does not exist or is incomplete. Open updates only the settings that depend on the paths of mount,
// store and programs, the logins, and the list of shallow commits.
func Open(path string, o Options) (*Dir, bool, error) {
	// Create writes HEAD last, so a directory without it is incomplete, unless Open has withdrawn HEAD and its process has
	// died.
	if !Exists(path) {
		return nil, false, nil
	}
	name := filepath.Join(path, "config")
	text, err := disk.ReadRegular(name, disk.SmallFile)
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
		d.SetShallow(o.Shallow)) // the store may have been created again with fewer commits
	if err == nil {
		err = d.complete(o)
	}
	if err != nil {
		return nil, false, fmt.Errorf("open git directory: %w", err)
	}
	return d, true, nil
}

// Exists reports whether there is a git directory at path that Open opens.
func Exists(path string) bool {
	return exists(filepath.Join(path, "HEAD")) || exists(filepath.Join(path, withdrawnHead))
}

// withdrawnHead is the name that the file HEAD has while the directory has no index.
const withdrawnHead = "artifactfs-HEAD"

// complete writes the index of an existing directory that has lost its index. Meanwhile the file HEAD has another name,
// so that git does not recognize the directory as a git directory. If the process dies, the next call of Open completes
// the directory.
func (d *Dir) complete(o Options) error {
	head, withdrawn := filepath.Join(d.path, "HEAD"), filepath.Join(d.path, withdrawnHead)
	if o.Index != nil && !exists(filepath.Join(d.path, "index")) {
		if exists(head) {
			if err := os.Rename(head, withdrawn); err != nil {
				return err
			}
		}
		if err := o.Index(d); err != nil {
			return err
		}
	}
	if !exists(withdrawn) || exists(head) {
		return nil
	}
	return os.Rename(withdrawn, head)
}

// exists reports whether there is a file or a directory at path.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Reopen returns the git directory at path after a takeover. It does not change any file, because the predecessor has
// opened the directory for the same mount, and git commands may be using the directory.
func Reopen(path string, o Options) *Dir { return o.dir(path) }

// HasOwnObjects reports whether a git directory contains objects that were not fetched from a remote: loose objects, or
// objects in packs without a .promisor file.
func HasOwnObjects(path string) (bool, error) {
	objects := filepath.Join(path, "objects")
	for _, pattern := range []string{"pack/*.pack", "[0-9a-f][0-9a-f]/*"} {
		found, err := disk.Glob(objects, pattern)
		if err != nil {
			return false, fmt.Errorf("search for objects: %w", err)
		}
		for _, f := range found {
			if _, err := os.Lstat(strings.TrimSuffix(f, ".pack") + ".promisor"); err != nil || !strings.HasSuffix(f, ".pack") {
				return true, nil
			}
		}
	}
	return false, nil
}

// SetShallow replaces the list of commits whose parents are missing (gitrepository-layout(5), "shallow"). If ids is
// empty, SetShallow removes the file with the list.
func (d *Dir) SetShallow(ids []object.ID) error {
	path := filepath.Join(d.path, "shallow")
	if len(ids) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	return disk.WriteFile(path, []byte(object.Lines(ids)), 0o644)
}

// SetRefs replaces the remote-tracking branches of the mounted remote and adds the remote's tags. The requested branch
// always has a remote-tracking branch, even if the parameter remote lacks the branch. Local branches and existing tags
// keep their values, because git or the user may have changed them.
func (d *Dir) SetRefs(remote []packedrefs.Ref) error {
	d.packed.Lock()
	defer d.packed.Unlock()
	path := filepath.Join(d.path, "packed-refs")
	text, err := disk.ReadRegular(path, disk.LargeFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write refs: %w", err)
	}
	packed, err := packedrefs.Decode(text)
	if err != nil {
		return fmt.Errorf("write refs: %w", err)
	}
	var refs []packedrefs.Ref
	kept, below := map[string]bool{}, refname.Tracking(d.path, "")
	for _, r := range packed {
		// Drop all remote-tracking branches. The code below adds those that the remote still has.
		if !strings.HasPrefix(r.Name, below) {
			refs, kept[r.Name] = append(refs, r), true
		}
	}
	if d.head.Name != "" && !d.head.ID.IsZero() && !kept[d.head.Name] {
		refs = append(refs, d.head)
	}
	tracking := false
	for _, r := range remote {
		if branch, ok := strings.CutPrefix(r.Name, "refs/heads/"); ok {
			r.Name = below + branch
		} else if !strings.HasPrefix(r.Name, "refs/tags/") || kept[r.Name] {
			continue
		}
		tracking = tracking || r.Name == d.tracking()
		refs = append(refs, r)
	}
	// The parameter remote may lack the requested branch, in particular if the list of the remote's refs was not fetched
	// yet.
	if !tracking && len(refs) > 0 && d.head.Name != "" && !d.head.ID.IsZero() {
		refs = append(refs, packedrefs.Ref{Name: d.tracking(), ID: d.head.ID})
	}
	return disk.WriteFile(path, packedrefs.Encode(text, refs), 0o644)
}

// SetDefault sets the ref HEAD of the mounted remote, such as refs/remotes/origin/HEAD, to the remote's default branch.
// The parameter branch is a full name, or "" if the default branch is not known or has no commit. Like git fetch,
// SetDefault does not change an existing ref.
func (d *Dir) SetDefault(branch string) error {
	name, ok := strings.CutPrefix(branch, "refs/heads/")
	if !ok {
		return nil
	}
	path := filepath.Join(d.path, refname.Tracking(d.path, "HEAD"))
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return disk.WriteFile(path, []byte("ref: "+refname.Tracking(d.path, name)+"\n"), 0o644)
}

// tracking returns the name of the remote-tracking branch of the requested branch.
func (d *Dir) tracking() string {
	return refname.Tracking(d.path, strings.TrimPrefix(d.head.Name, "refs/heads/"))
}
