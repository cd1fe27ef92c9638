package mount

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/mount/mountpoint"
	"github.com/artifactfs/artifactfs/mount/remotes"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/statedir"
	"github.com/artifactfs/artifactfs/worktree"
)

const (
	submodulesAtOnce = 4       // submodules that are mounted concurrently
	maxSubmodules    = 1000    // submodules of one mount, including nested ones
	maxModulesFile   = 1 << 20 // largest size of .gitmodules in bytes
)

// submodules are the mounts of a mount's submodules. Each one shows, at the path of a gitlink, the commit that the gitlink
// refers to. They are ordinary mounts with their own sessions, but they are mounted and unmounted together with the mount that
// contains them. The outermost mount lists all of them, including nested ones; the lists of inner mounts are empty.
type submodules struct {
	mount *Mount

	// mu guards inside and notes.
	mu     sync.Mutex
	inside []*Mount
	notes  []string // reasons why submodules are not mounted
}

// submodule is a submodule that is to be mounted.
type submodule struct {
	gitdir.Submodule
	parent *Mount
	commit object.ID
}

// enter mounts the submodules of the mount, and their submodules. If a submodule cannot be mounted, it adds a note for the
// status.
func (s *submodules) enter(ctx context.Context) {
	level := []*Mount{s.mount}
	// Each round mounts the submodules of the mounts that the previous round created.
	for len(level) > 0 && ctx.Err() == nil {
		var wanted []submodule
		for _, m := range level {
			wanted = append(wanted, s.find(ctx, m)...)
		}
		s.mu.Lock()
		if room := maxSubmodules - len(s.inside); len(wanted) > room {
			s.notes = append(s.notes, fmt.Sprintf("%d submodules are not mounted: the limit is %d", len(wanted)-room, maxSubmodules))
			wanted = wanted[:room]
		}
		s.mu.Unlock()
		level = s.mountAll(ctx, wanted)
	}
}

// mountAll mounts submodules concurrently and returns those mounts that succeeded.
func (s *submodules) mountAll(ctx context.Context, wanted []submodule) []*Mount {
	mounts := make([]*Mount, len(wanted))
	slots := make(chan struct{}, submodulesAtOnce)
	var all sync.WaitGroup
	for i, w := range wanted {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			// If an unmount has failed before, some submodules are still mounted.
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

// at returns the submodule that is mounted at a directory.
func (s *submodules) at(dir string) (*Mount, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.inside, func(m *Mount) bool { return m.Dir == dir })
	if i < 0 {
		return nil, false
	}
	return s.inside[i], true
}

// note records why a submodule is not mounted.
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

// find returns the submodules in the tree of the mount m, with their commits. It skips entries of .gitmodules for which the tree
// has no gitlink.
func (s *submodules) find(ctx context.Context, m *Mount) []submodule {
	modules, refused, err := readModules(ctx, m.view, m.snapshot().Tree)
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
		// A path is a submodule if the tree has a gitlink there, whatever .gitmodules says.
		if w.commit, ok, err = gitlink(ctx, m.view, m.snapshot().Tree, module.Path); err != nil {
			s.note(w, err)
		} else if ok {
			found = append(found, w)
		}
	}
	return found
}

// readModules reads .gitmodules of a base tree, because the gitlinks are in the base tree too.
func readModules(ctx context.Context, v *fetch.View, tree object.ID) (modules []gitdir.Submodule, refused []string, err error) {
	text, err := readRootFile(ctx, v, tree, gitdir.ModulesFile, maxModulesFile)
	if err != nil {
		return nil, nil, fmt.Errorf("%s cannot be read: %w", gitdir.ModulesFile, err)
	}
	return gitdir.ParseModules(text)
}

// wholeModules returns the submodules that are listed in the configuration of the mount's git directory, mounted or not. Their
// URLs are absolute.
func (m *Mount) wholeModules(ctx context.Context) []gitdir.Submodule {
	if !m.Request.Submodules && m.Parent == nil {
		return nil
	}
	modules, _, err := readModules(ctx, m.view, m.snapshot().Tree)
	if err != nil {
		return nil // find has added a note
	}
	whole := modules[:0]
	for _, module := range modules {
		if module.URL, err = gitdir.ResolveURL(m.store.URL(), module.URL); err == nil {
			whole = append(whole, module)
		}
	}
	return whole
}

// mountOne mounts a submodule on the empty directory that the parent shows for the gitlink. Like git, it refuses a local URL in
// a repository whose own URL is not local.
func (s *submodules) mountOne(ctx context.Context, w submodule) (*Mount, error) {
	parent := w.parent
	remote, err := gitdir.ResolveURL(parent.Request.Remote, w.URL)
	if err != nil {
		return nil, err
	}
	// Git refuses such a URL too (protocol.file.allow).
	if remotes.IsLocal(remote) && !remotes.IsLocal(parent.Request.Remote) {
		return nil, errors.New("a remote repository names a directory of this host")
	}
	if err := plain(ctx, parent.tree, parent.Dir, w.Path); err != nil {
		return nil, err
	}
	// The submodule uses the request of its parent, without the options that apply to the parent alone.
	r := parent.requestNow()
	r.Remote, r.Dir, r.Ref = remotes.LikeUser(remote, r.Remote), filepath.Join(parent.Dir, w.Path), w.commit.String()
	r.Submodules, r.Redirects, r.RedirectsOnly, r.Nonce = false, nil, false, ""
	r.Wait, r.Session, r.Device, r.Through = control.WaitTree, "", nil, ""
	r.At = ""
	if r.SessionOptions.Remote != control.RemoteNone { // the parent's session remote has branches of another repository
		r.SessionOptions.Remote = control.RemoteEmbedded
	}
	// The name depends on the parent's session and the path, so that a later mount resumes the session.
	if parent.Session != "" {
		name := statedir.SessionName(parent.Session, w.Path)
		r.Session = parent.Session[:min(len(parent.Session), maxSessionName-len(name)-1)] + "." + name
	}
	if !remotes.SameHost(remote, parent.Request.Remote) { // the host of the submodule must not receive the parent's token
		r.Token, r.TokenFile = "", ""
	}
	r.SessionToken, r.SessionTokenFile = "", ""
	return s.mount.host.Registry.MountInside(ctx, r, parent)
}

// maxSessionName is the longest session name in bytes that control.ValidSession allows.
const maxSessionName = 128

// plain checks that p is a directory of the tree that is mounted at dir, and is not below a symbolic link, which could lead the
// submodule out of the mount. It also makes the kernel look the path up, so that mount(2) needs no request to this process.
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
			return fmt.Errorf("%s is no directory any more", at)
		}
	}
	// This process has to answer the lookup, so it runs on a thread without the FUSE device.
	return fuse.WithoutDevice(func() error {
		var st unix.Stat_t
		return os.NewSyscallError("lstat", unix.Lstat(filepath.Join(dir, p), &st))
	})
}

// leave unmounts the submodules, innermost first. If one of them cannot be unmounted, leave mounts the others again and returns
// the error.
func (s *submodules) leave(ctx context.Context, force bool) error {
	// Inner mounts keep the outer ones busy.
	for _, m := range slices.Backward(s.list()) {
		if err := m.takeDown(ctx, force); err != nil {
			s.again(ctx)
			return err
		}
	}
	return nil
}

// again mounts the submodules again that leave has unmounted, because the mount that contains them was not unmounted. Their
// sessions are resumed.
func (s *submodules) again(ctx context.Context) {
	if len(s.list()) == 0 {
		return
	}
	s.mu.Lock()
	s.inside, s.notes = slices.DeleteFunc(s.inside, (*Mount).IsGone), nil
	s.mu.Unlock()
	s.enter(context.WithoutCancel(ctx))
}

// settle returns the unmount replies of the submodules. If discard is set, it discards their sessions.
func (s *submodules) settle(discard, trash bool) (replies []control.UnmountReply) {
	for _, m := range s.list() {
		m.mu.Lock()
		o := m.outcome
		m.mu.Unlock()
		// The mount has ended, so its session is discarded in the same way as any session that is not mounted.
		if discard && o.unsaved.Any() {
			if err := m.host.Homes.Discard(m.Session, trash); err != nil {
				m.host.Log.Warn("discard submodule's session", zap.String("dir", m.Dir), zap.Error(err))
			} else {
				o.unsaved = statedir.Unsaved{}
			}
		}
		reply := control.UnmountReply{ID: m.ID, Dir: m.Dir}
		if o.unsaved.Any() || o.err != nil {
			reply.Session, reply.Kept = m.Session, o.unsaved.Paths
		}
		replies = append(replies, reply)
	}
	return replies
}

// list returns the submodules sorted by directory, so that each submodule precedes its nested submodules.
func (s *submodules) list() []*Mount {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.inside)
	slices.SortFunc(all, func(a, b *Mount) int { return strings.Compare(a.Dir, b.Dir) })
	return all
}

// problems returns the notes on submodules that are not mounted.
func (s *submodules) problems() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.notes)
}

// IsGone reports whether the mount has ended.
func (m *Mount) IsGone() bool {
	select {
	case <-m.gone:
		return true
	default:
		return false
	}
}

// gitlink returns the commit of the gitlink at the path p of a tree. It returns false if the path does not exist or is not a
// gitlink.
func gitlink(ctx context.Context, v *fetch.View, tree object.ID, p string) (object.ID, bool, error) {
	names := strings.Split(p, "/")
	for i, name := range names {
		entries, err := v.Tree(ctx, tree)
		if err != nil {
			return object.ID{}, false, err
		}
		at := slices.IndexFunc(entries, func(e object.TreeEntry) bool { return e.Name == name })
		switch {
		case at < 0:
			return object.ID{}, false, nil
		case i == len(names)-1:
			return entries[at].ID, entries[at].Mode == object.ModeGitlink, nil
		case entries[at].Mode != object.ModeDir:
			return object.ID{}, false, nil
		}
		tree = entries[at].ID
	}
	return object.ID{}, false, nil
}

// readRootFile returns the contents of a file in the root of a tree, or nil if the tree has no such file. It returns an error if
// the file is larger than limit bytes.
func readRootFile(ctx context.Context, v *fetch.View, root object.ID, name string, limit int64) ([]byte, error) {
	entries, err := v.Tree(ctx, root)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(entries, func(e object.TreeEntry) bool { return e.Name == name })
	if at < 0 {
		return nil, nil
	}
	// A symbolic link has no contents to parse.
	if !entries[at].Mode.IsBlob() || entries[at].Mode == object.ModeSymlink {
		return nil, errors.New("it is no file")
	}
	content, err := v.Open(ctx, fetch.Blob{ID: entries[at].ID, Path: name})
	if err != nil {
		return nil, err
	}
	defer content.Release()
	if content.Size() > limit {
		return nil, fmt.Errorf("%d bytes", content.Size())
	}
	return io.ReadAll(io.NewSectionReader(content, 0, content.Size()))
}

// prepare creates or checks the directory of a mount. If the mount is a submodule, this directory is in another mount of this
// process.
func (m *Mount) prepare(ctx context.Context) (p mountpoint.Point, err error) {
	switch {
	// Another program has mounted the device already.
	case m.Request.Device != nil:
		return mountpoint.CheckAdopted(m.Request)
	case m.Request.Through != "": // an access to the directory would wait for this process
		return mountpoint.Point{Dir: m.Dir}, mountpoint.CheckDevice()
	case m.Parent == nil:
		return mountpoint.Prepare(ctx, m.Dir, "")
	}
	err = fuse.WithoutDevice(func() error {
		p, err = mountpoint.Prepare(ctx, m.Dir, m.Parent.Dir)
		return err
	})
	return p, err
}
