package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
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
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/statedir"
)

const (
	submodulesAtOnce = 4       // that are being mounted
	maxSubmodules    = 1000    // below one mount, nested ones included
	maxModulesFile   = 1 << 20 // bytes
)

// submodules are the mounts inside of one: each shows the commit that a gitlink names, at the gitlink's path. They are
// mounts like any other, with sessions of their own, but come and go with the one around them, which alone has an entry
// of them here: nested ones are in it, too.
type submodules struct {
	mount *mount

	mu     sync.Mutex
	inside []*mount
	notes  []string // why some are not mounted
}

// submodule is one that shall be mounted.
type submodule struct {
	gitdir.Submodule
	parent *mount
	commit object.ID
}

// enter mounts the submodules, and theirs. One that cannot be mounted is a note, not an error.
func (s *submodules) enter(ctx context.Context) {
	around := []*mount{s.mount}
	for len(around) > 0 && ctx.Err() == nil {
		var wanted []submodule
		for _, m := range around {
			wanted = append(wanted, s.find(ctx, m)...)
		}
		s.mu.Lock()
		if room := maxSubmodules - len(s.inside); len(wanted) > room {
			s.notes = append(s.notes, fmt.Sprintf("%d submodules are not mounted: the limit is %d", len(wanted)-room, maxSubmodules))
			wanted = wanted[:room]
		}
		s.mu.Unlock()
		around = s.mountAll(ctx, wanted)
	}
}

// mountAll mounts several at once and gives those that went well.
func (s *submodules) mountAll(ctx context.Context, wanted []submodule) []*mount {
	mounts := make([]*mount, len(wanted))
	slots := make(chan struct{}, submodulesAtOnce)
	var all sync.WaitGroup
	for i, w := range wanted {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			m, ok := s.at(filepath.Join(w.parent.dir, w.Path))
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
	mounts = slices.DeleteFunc(mounts, func(m *mount) bool { return m == nil })
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range mounts {
		if !slices.Contains(s.inside, m) {
			s.inside = append(s.inside, m)
		}
	}
	return mounts
}

// at finds the submodule that is mounted at a directory.
func (s *submodules) at(dir string) (*mount, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.inside, func(m *mount) bool { return m.dir == dir })
	if i < 0 {
		return nil, false
	}
	return s.inside[i], true
}

func (s *submodules) note(w submodule, err error) {
	cause := err.Error()
	var e *control.Error
	if errors.As(err, &e) {
		cause = e.Cause
	}
	rest, _ := filepath.Rel(s.mount.dir, filepath.Join(w.parent.dir, w.Path))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notes = append(s.notes, fmt.Sprintf("submodule %s is not mounted: %s", rest, cause))
}

// find reads what submodules the tree of a mount has, and of which commits. What .gitmodules names and the tree has not
// is no submodule.
func (s *submodules) find(ctx context.Context, m *mount) []submodule {
	modules, refused, err := m.modules(ctx)
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
		if w.commit, ok, err = gitlink(ctx, m.view, m.snapshot().Tree, module.Path); err != nil {
			s.note(w, err)
		} else if ok {
			found = append(found, w)
		}
	}
	return found
}

// modules reads .gitmodules of the base tree, which has the gitlinks.
func (m *mount) modules(ctx context.Context) (modules []gitdir.Submodule, refused []string, err error) {
	text, err := readRootFile(ctx, m.view, m.snapshot().Tree, gitdir.ModulesFile, maxModulesFile)
	if err != nil {
		return nil, nil, fmt.Errorf("%s cannot be read: %w", gitdir.ModulesFile, err)
	}
	return gitdir.ParseModules(text)
}

// wholeModules are the submodules of which the mount's git directory is told, mounted or not, with whole URLs.
func (m *mount) wholeModules(ctx context.Context) []gitdir.Submodule {
	if !m.request.Submodules && m.parent == nil {
		return nil
	}
	modules, _, err := m.modules(ctx)
	if err != nil {
		return nil // a note says so
	}
	whole := modules[:0]
	for _, module := range modules {
		if module.URL, err = gitdir.ResolveURL(m.store.URL(), module.URL); err == nil {
			whole = append(whole, module)
		}
	}
	return whole
}

// mountOne mounts a submodule over the empty directory that stands for the gitlink.
func (s *submodules) mountOne(ctx context.Context, w submodule) (*mount, error) {
	around := w.parent
	remote, err := gitdir.ResolveURL(around.request.Remote, w.URL)
	if err != nil {
		return nil, err
	}
	if isLocal(remote) && !isLocal(around.request.Remote) {
		return nil, errors.New("a remote repository names a directory of this host")
	}
	if err := around.plain(ctx, w.Path); err != nil {
		return nil, err
	}
	r := around.requestNow()
	r.Remote, r.Dir, r.Ref = likeUser(remote, r.Remote), filepath.Join(around.dir, w.Path), w.commit.String()
	r.Submodules, r.Redirects, r.RedirectsOnly, r.Nonce = false, nil, false, ""
	r.Wait, r.Session, r.Device, r.Through = control.WaitTree, "", nil, ""
	r.At = ""
	if r.SessionOptions.Remote != control.RemoteNone { // that of the mount around it has branches of another repository
		r.SessionOptions.Remote = control.RemoteEmbedded
	}
	if around.session != "" {
		name := statedir.SessionName(around.session, w.Path)
		r.Session = around.session[:min(len(around.session), maxSessionName-len(name)-1)] + "." + name
	}
	if !sameHost(remote, around.request.Remote) { // it must not learn the other's password
		r.Token, r.TokenFile = "", ""
	}
	r.SessionToken, r.SessionTokenFile = "", ""
	m, _, err := s.mount.daemon.mount(ctx, r, beginning{parent: around}, func(control.Progress) {})
	return m, err
}

// maxSessionName keeps within what control.ValidSession allows.
const maxSessionName = 128

// plain makes sure that a path is a directory of the mount, behind no symbolic link: what is mounted there would be
// mounted elsewhere. It is also looked up by the kernel, so that mounting asks nothing more of this process.
func (m *mount) plain(ctx context.Context, p string) error {
	for at := p; at != "."; at = path.Dir(at) {
		n, err := m.tree.Resolve(ctx, at)
		if err != nil {
			return err
		}
		attr, err := m.tree.Attr(ctx, n)
		if err != nil {
			return err
		}
		if attr.Mode&unix.S_IFMT != unix.S_IFDIR {
			return fmt.Errorf("%s is no directory any more", at)
		}
	}
	return fuse.WithoutDevice(func() error {
		var st unix.Stat_t
		return os.NewSyscallError("lstat", unix.Lstat(filepath.Join(m.dir, p), &st))
	})
}

// leave unmounts the submodules, the innermost first. If one is busy, an error that changes nothing.
func (s *submodules) leave(ctx context.Context, force bool) error {
	for _, m := range slices.Backward(s.list()) {
		if err := m.takeDown(ctx, force); err != nil {
			s.again(ctx)
			return err
		}
	}
	return nil
}

// again mounts what leave has unmounted: the mount around them stays. Their work was kept.
func (s *submodules) again(ctx context.Context) {
	if len(s.list()) == 0 {
		return
	}
	s.mu.Lock()
	s.inside, s.notes = slices.DeleteFunc(s.inside, (*mount).isGone), nil
	s.mu.Unlock()
	s.enter(context.WithoutCancel(ctx))
}

// settle says what became of the work in the submodules, which are unmounted, and throws it away if that is wished.
func (s *submodules) settle(discard, trash bool) (replies []control.UnmountReply) {
	for _, m := range s.list() {
		m.mu.Lock()
		o := m.outcome
		m.mu.Unlock()
		if discard && o.kept.Any() {
			if err := m.daemon.homes.Discard(m.session, trash); err != nil {
				m.daemon.log.Warn("discard submodule's session", zap.String("dir", m.dir), zap.Error(err))
			} else {
				o.kept = statedir.Unsaved{}
			}
		}
		reply := control.UnmountReply{ID: m.id, Dir: m.dir}
		if o.kept.Any() || o.err != nil {
			reply.Session, reply.Kept = m.session, o.kept.Paths
		}
		replies = append(replies, reply)
	}
	return replies
}

// list gives the submodules; what is around another comes before it.
func (s *submodules) list() []*mount {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.inside)
	slices.SortFunc(all, func(a, b *mount) int { return strings.Compare(a.dir, b.dir) })
	return all
}

func (s *submodules) problems() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.notes)
}

func (m *mount) isGone() bool {
	select {
	case <-m.gone:
		return true
	default:
		return false
	}
}

// isLocal says whether a remote is on this host: git would not follow a submodule there from elsewhere either.
func isLocal(remote string) bool {
	if scheme, _, ok := strings.Cut(remote, "://"); ok {
		return strings.EqualFold(scheme, "file")
	}
	colon, slash := strings.IndexByte(remote, ':'), strings.IndexByte(remote, '/')
	return colon < 0 || slash >= 0 && slash < colon
}

// sameHost says whether a secret for one remote may be shown to the other.
func sameHost(a, b string) bool {
	ua, errA := url.Parse(a)
	ub, errB := url.Parse(b)
	return errA == nil && errB == nil && ua.Host != "" && ua.Scheme == ub.Scheme && ua.Host == ub.Host
}

// gitlink gives the commit that a path of a tree stands for; false: it is no gitlink.
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

// readRootFile reads a file in the root of a tree; nothing if it has none.
func readRootFile(ctx context.Context, v *fetch.View, root object.ID, name string, limit int64) ([]byte, error) {
	entries, err := v.Tree(ctx, root)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(entries, func(e object.TreeEntry) bool { return e.Name == name })
	if at < 0 {
		return nil, nil
	}
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

// prepare makes the directory of a mount ready. That of a submodule lies in a mount of this very process.
func (m *mount) prepare(ctx context.Context) (p mountpoint.Point, err error) {
	switch {
	case m.request.Device != nil:
		return mountpoint.CheckAdopted(m.request)
	case m.request.Through != "": // looking into it would wait for ourselves
		return mountpoint.Point{Dir: m.dir}, mountpoint.CheckDevice()
	case m.parent == nil:
		return mountpoint.Prepare(ctx, m.dir, "")
	}
	err = fuse.WithoutDevice(func() error {
		p, err = mountpoint.Prepare(ctx, m.dir, m.parent.dir)
		return err
	})
	return p, err
}
