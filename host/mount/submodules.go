package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport/endpoint"
	"github.com/artifactfs/artifactfs/host/mount/contents"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/worktree"
)

const (
	submodulesAtOnce = 4       // maximum number of submodules that are mounted at the same time
	maxSubmodules    = 1000    // maximum number of submodules of one mount, including nested ones
	maxModulesFile   = 1 << 20 // maximum size of .gitmodules, in bytes
)

// submodules has the mounts of a mount's submodules. Each is at the path of a gitlink (the tree entry of a submodule)
// and shows the commit in the gitlink. They are ordinary mounts with their own sessions, but are mounted and unmounted
// together with the mount that contains them. The outermost mount lists all of them, including nested ones; the lists
// of inner mounts are empty.
type submodules struct {
	mount *Mount

	// mu protects the fields inside and notes.
	mu     sync.Mutex
	inside []*Mount
	notes  []string // reasons why some submodules are not mounted
}

// submodule is a submodule that is to be mounted in the mount parent.
type submodule struct {
	gitdir.Submodule
	parent *Mount
	commit object.ID
}

// enter mounts the submodules of the mount, and the submodules inside them. If a submodule cannot be mounted, enter
// adds a note that the status shows.
func (s *submodules) enter(ctx context.Context) {
	level := []*Mount{s.mount}
	// Each iteration mounts the submodules that are directly in the mounts of the previous iteration.
	for len(level) > 0 && ctx.Err() == nil {
		var wanted []submodule
		for _, m := range level {
			wanted = append(wanted, s.find(ctx, m)...)
		}
		s.mu.Lock()
		if room := maxSubmodules - len(s.inside); len(wanted) > room {
			s.notes = append(s.notes, fmt.Sprintf("%d submodules are not mounted: the limit is %d", len(wanted)-room,
				maxSubmodules))
			wanted = wanted[:room]
		}
		s.mu.Unlock()
		level = s.mountAll(ctx, wanted)
	}
}

// mountAll mounts several submodules at the same time, and returns the mounts of those that could be mounted.
func (s *submodules) mountAll(ctx context.Context, wanted []submodule) []*Mount {
	mounts := make([]*Mount, len(wanted))
	slots := make(chan struct{}, submodulesAtOnce)
	var all sync.WaitGroup
	for i, w := range wanted {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			// After a failed unmount of the outer mount, some submodules are still mounted.
			m, ok := s.at(filepath.Join(w.parent.Dir, w.Path))
			if !ok {
				var err error
				if m, err = s.mountOne(ctx, w); err != nil {
					s.note(w, err)
					return
				}
			}
			mounts[i] = m
		})
	}
	all.Wait()
	mounts = slices.DeleteFunc(mounts, func(m *Mount) bool { return m == nil })
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range mounts {
		if !slices.Contains(s.inside, m) {
			s.inside = append(s.inside, m)
		}
	}
	return mounts
}

// at returns the mount of the submodule in the directory dir, or false if there is none.
func (s *submodules) at(dir string) (*Mount, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.inside, func(m *Mount) bool { return m.Dir == dir })
	if i < 0 {
		return nil, false
	}
	return s.inside[i], true
}

// note adds a note with the error because of which the submodule w is not mounted.
func (s *submodules) note(w submodule, err error) {
	cause := err.Error()
	var e *control.Error
	if errors.As(err, &e) {
		cause = e.Cause
	}
	// The note names the submodule by its path in the outermost mount.
	rest, _ := filepath.Rel(s.mount.Dir, filepath.Join(w.parent.Dir, w.Path))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notes = append(s.notes, fmt.Sprintf("submodule %s is not mounted: %s", rest, cause))
}

// find returns the submodules in the base tree of the mount m, with their commits. It skips entries of .gitmodules
// whose path is not a gitlink (the tree entry of a submodule).
func (s *submodules) find(ctx context.Context, m *Mount) []submodule {
	modules, refused, err := readModules(ctx, m.contents)
	if err != nil {
		refused = append(refused, err.Error())
	}
	s.mu.Lock()
	s.notes = append(s.notes, refused...)
	s.mu.Unlock()
	var found []submodule
	for _, module := range modules {
		w := submodule{Submodule: module, parent: m}
		var ok bool
		// Only paths with a gitlink in the tree are submodules. .gitmodules may contain other paths.
		if w.commit, ok, err = m.contents.Gitlink(ctx, module.Path); err != nil {
			s.note(w, err)
		} else if ok {
			found = append(found, w)
		}
	}
	return found
}

// readModules returns the submodules that .gitmodules in the base tree lists. The base tree is used because gitlinks
// are read from the same tree. refused has the names of submodules whose entry is invalid.
func readModules(ctx context.Context, c *contents.Contents) (modules []gitdir.Submodule, refused []string, err error) {
	text, err := c.RootFile(ctx, gitdir.ModulesFile, maxModulesFile)
	if err != nil {
		return nil, nil, fmt.Errorf("%s cannot be read: %w", gitdir.ModulesFile, err)
	}
	return gitdir.ParseModules(text)
}

// allModules returns all submodules in the base tree for the configuration of the git directory, whether or not they
// are mounted. Their URLs are absolute.
func allModules(ctx context.Context, c *contents.Contents) []gitdir.Submodule {
	modules, _, err := readModules(ctx, c)
	if err != nil {
		return nil // the error is not returned, because find reports it in a note
	}
	whole := modules[:0]
	for _, module := range modules {
		if module.URL, err = gitdir.ResolveURL(c.Store.URL(), module.URL); err == nil {
			whole = append(whole, module)
		}
	}
	return whole
}

// mountOne mounts the submodule w at the empty directory that its parent shows for the gitlink. Like git, it refuses a
// local URL if the URL of the parent's repository is not local.
func (s *submodules) mountOne(ctx context.Context, w submodule) (*Mount, error) {
	parent := w.parent
	remote, err := gitdir.ResolveURL(parent.Request.Remote, w.URL)
	if err != nil {
		return nil, err
	}
	// The check corresponds to git's protocol.file.allow.
	if remotes.IsLocal(remote) && !remotes.IsLocal(parent.Request.Remote) {
		return nil, errors.New("remote repository names a directory of this host as URL")
	}
	if err := plain(ctx, parent.attachment.Tree, parent.Dir, w.Path); err != nil {
		return nil, err
	}
	// The request for a submodule is a copy of its parent's request, without the options that apply only to the parent.
	r := parent.Request.Now()
	r.Remote, r.Dir, r.Ref = remotes.LikeUser(remote, r.Remote), filepath.Join(parent.Dir, w.Path), w.commit.String()
	r.Submodules, r.Redirects, r.RedirectsOnly, r.Nonce = false, nil, false, ""
	r.Wait, r.Session, r.Device, r.Through = control.WaitTree, "", nil, ""
	r.At, r.ShareProfile = "", false
	// the parent's session remote contains the branches of another repository
	if r.SessionOptions.Remote != control.RemoteNone {
		r.SessionOptions.Remote = control.RemoteEmbedded
	}
	// The session's name is derived from the parent's session and the path, so that a later mount resumes the same
	// session.
	if parent.Session != "" {
		name := statedir.SessionName(parent.Session, w.Path)
		r.Session = parent.Session[:min(len(parent.Session), maxSessionName-len(name)-1)] + "." + name
	}
	if !endpoint.SameHost(remote, parent.Request.Remote) { // the parent's token must not be sent to another host
		r.Token, r.TokenFile = "", ""
	}
	r.SessionToken, r.SessionTokenFile = "", ""
	return s.mount.host.Registry.MountInside(ctx, r, parent)
}

// maxSessionName is the maximum length of a session name that control.ValidSession allows, in bytes.
const maxSessionName = 128

// plain returns an error unless the path p is a directory in the working tree that is mounted at dir, and no parent
// directory of p is a symbolic link, through which the submodule could be mounted outside of the mount. plain also
// makes the kernel look the path up, so that mount(2) sends no request to this process.
func plain(ctx context.Context, tree *worktree.Tree, dir, p string) error {
	for at := p; at != "."; at = path.Dir(at) {
		n, err := tree.Resolve(ctx, at)
		if err != nil {
			return err
		}
		attr, err := tree.Attr(ctx, n)
		if err != nil {
			return err
		}
		if attr.Mode&unix.S_IFMT != unix.S_IFDIR {
			return fmt.Errorf("%s is not a directory any more", at)
		}
	}
	// This process itself answers the lookup, so the lookup must not block a thread that reads the FUSE device.
	return fuse.WithoutDevice(func() error {
		var st unix.Stat_t
		return os.NewSyscallError("lstat", unix.Lstat(filepath.Join(dir, p), &st))
	})
}

// unmount unmounts the submodules, the innermost first. If one of them cannot be unmounted, unmount mounts the others
// again and returns the error.
func (s *submodules) unmount(ctx context.Context, force bool) error {
	// An outer mount is busy while an inner one exists.
	for _, m := range slices.Backward(s.list()) {
		if err := m.takeDown(ctx, force); err != nil {
			s.again(ctx)
			return err
		}
	}
	return nil
}

// again mounts the submodules that the method unmount has unmounted, because the mount that contains them could not be
// unmounted. It resumes the sessions of these submodules.
func (s *submodules) again(ctx context.Context) {
	if len(s.list()) == 0 {
		return
	}
	s.mu.Lock()
	s.inside, s.notes = slices.DeleteFunc(s.inside, (*Mount).IsGone), nil
	s.mu.Unlock()
	s.enter(context.WithoutCancel(ctx))
}

// settle returns the unmount replies of the submodules. If discard is true, it also discards the sessions of the
// submodules. A discarded session is moved to the trash if toTrash is true, and is deleted otherwise.
func (s *submodules) settle(discard, toTrash bool) (replies []control.UnmountReply) {
	for _, m := range s.list() {
		reply, o := control.UnmountReply{ID: m.ID, Dir: m.Dir}, m.ending.result()
		// The submodule is no longer mounted, so its session is discarded like any other session that is not mounted.
		if discard && o.Unsaved.Any() {
			if until, err := m.host.Homes.Discard(m.Session, toTrash); err != nil {
				m.host.Log.Warn("discard submodule's session", zap.String("dir", m.Dir), zap.Error(err))
			} else if o.Unsaved = (statedir.Unsaved{}); toTrash {
				reply.Trashed, reply.Until = m.Session, until
			}
		}
		if o.Unsaved.Any() || o.Err != nil {
			reply.Session, reply.Kept = m.Session, o.Unsaved.Paths
		}
		replies = append(replies, reply)
	}
	return replies
}

// list returns the mounts of the submodules sorted by directory, so that each submodule precedes its nested submodules.
func (s *submodules) list() []*Mount {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.inside)
	slices.SortFunc(all, func(a, b *Mount) int { return strings.Compare(a.Dir, b.Dir) })
	return all
}

// problems returns the notes about submodules that are not mounted.
func (s *submodules) problems() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.notes)
}

// IsGone reports whether the mount has ended.
func (m *Mount) IsGone() bool { return m.phase.IsGone() }
