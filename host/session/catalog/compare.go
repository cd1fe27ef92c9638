package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/merge"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/mirror"
	"github.com/artifactfs/artifactfs/session/proposals"
)

// A comparison reads each side (a checkpoint that is compared) from the session repository on this host, or through a
// mirror of its session remote. Git compares and merges the sides in a scratch repository that uses the objects of all
// sides as alternates. Before that, the contents of the changed files are fetched with one request for each side,
// because git would fetch them one by one.

// compareSide is one of the checkpoints that are compared.
type compareSide struct {
	o *opened // session of the checkpoint
	// session remote as the request names it, possibly with credentials; "" for this host
	at         string
	meta       session.Meta         // metadata of that session
	checkpoint session.Checkpoint   // the checkpoint itself
	base       object.ID            // tree with which the checkpoint is compared to get the changes of this side
	ids        []object.ID          // contents of the changed files, both before and after the changes
	reply      control.ComparedSide // the part of the reply that describes this side
}

// comparing is the state of a comparison of several checkpoints. Only one goroutine uses it.
type comparing struct {
	all     *Catalog
	sides   []*compareSide
	mirrors map[string]*mirror.Mirror       // mirrors of mounted remotes, by URL
	opened  map[control.CompareSide]*opened // open sessions; the keys have no checkpoint ID
	scratch *session.Repo                   // temporary repository that git runs in
	remove  func() error                    // removes scratch
	merged  []object.ID                     // contents that git reads to merge the sides
}

// SessionCompare compares two or more checkpoints. It returns the changes of each checkpoint relative to the tree that
// it started from. For each path that several checkpoints changed, it reports whether git can merge the changes. If the
// sessions were started from different mounted remotes, it returns fault.ErrOtherRemote. If a side names the newest
// checkpoint of a session that is mounted on this host, a checkpoint of the present state is created first. A side
// whose session has no checkpoint is the tree that the session started from.
func (all *Catalog) SessionCompare(ctx context.Context,
	r control.SessionCompareRequest) (control.SessionCompareReply, error) {
	reply := control.SessionCompareReply{Sides: []control.ComparedSide{}, Shared: []control.SharedPath{}}
	c := &comparing{all: all, mirrors: map[string]*mirror.Mirror{}, opened: map[control.CompareSide]*opened{}}
	defer c.close()
	for _, side := range r.Sides {
		id := side.ID
		if id == "@" { // "@" names the newest checkpoint
			id = ""
		}
		err := all.keepNewest(ctx, side.Of, side.SessionRemote, id)
		if err == nil {
			err = c.open(ctx, side, r.Dir)
		}
		if err != nil {
			return reply, fault.ExplainSessionAt("compare", "session "+side.Of, err)
		}
	}
	if err := c.compare(ctx, &reply); err != nil {
		return reply, fault.ExplainSessionAt("compare", "sessions", err)
	}
	return reply, nil
}

// close closes the sessions and mirrors of the comparison, and removes the scratch repository.
func (c *comparing) close() {
	for _, o := range c.opened {
		o.Close()
	}
	for _, m := range c.mirrors {
		c.all.CloseMirror(m)
	}
	if c.scratch != nil {
		if err := errors.Join(c.scratch.Close(), c.remove()); err != nil {
			c.all.Log.Sugar().Warnf("remove the repository of a comparison: %v", err)
		}
	}
}

// open adds the checkpoint that r names to c.sides. A session is opened only once, even if several of its checkpoints
// are compared. If this host does not have the session, open searches it on the session remote of the mount at dir.
func (c *comparing) open(ctx context.Context, r control.CompareSide, dir string) (err error) {
	key := control.CompareSide{Of: r.Of, SessionRemote: r.SessionRemote}
	o := c.opened[key]
	if o == nil {
		o, err = c.all.openAt(ctx, r.Of, r.SessionRemote, true)
		if errors.Is(err, statedir.ErrNoSession) && r.SessionRemote == "" && dir != "" {
			if m, findErr := c.all.Mounts.Mounted(ctx, dir); m != nil && findErr == nil {
				o, err = c.all.openBeside(ctx, m, r.Of, err)
			}
		}
		if err != nil {
			return err
		}
		c.opened[key] = o
	}
	s := &compareSide{o: o, at: r.SessionRemote}
	if err := o.addRepo(c.all); err != nil {
		return err
	}
	if s.checkpoint, err = o.state(ctx, r.ID); err != nil {
		return err
	}
	if s.meta, err = o.metadata(); err != nil {
		return err
	}
	if o.far != nil {
		s.reply.SessionRemote = o.far.Remote().URL()
	}
	// Checkpoints of different repositories have no common base.
	if len(c.sides) > 0 && c.sides[0].meta.Remote != s.meta.Remote {
		return fmt.Errorf("%w: %s", fault.ErrOtherRemote, s.meta.Remote)
	}
	s.reply.Checkpoint, s.reply.Base, s.reply.Users = o.shownState(s.checkpoint), s.meta.Base, []string{}
	// Users lists each actor of the session's transitions once.
	for _, t := range s.meta.Transitions {
		if t.Actor != "" && !slices.Contains(s.reply.Users, t.Actor) {
			s.reply.Users = append(s.reply.Users, t.Actor)
		}
	}
	c.sides = append(c.sides, s)
	return nil
}

// openBeside opens the session called name on the session remote of the mount m. If m has no session remote, it returns
// missing, the error of the search on this host.
func (all *Catalog) openBeside(ctx context.Context, m *Mounted, name string, missing error) (*opened, error) {
	r := m.remoteRequest(name)
	if at, _ := remotes.SessionURL(r); at == "" {
		return nil, missing
	}
	return all.openOnRemote(ctx, r, true)
}

// compare compares the sides, which must be open, and sets the fields of the reply. It works in these steps:
//
//	forkCheckpoint  find the tree that each side started from
//	Trees           list the changes of each side, by ids alone
//	pairs           find the merge base of every pair of sides
//	provide         fetch the contents that git needs for the rest
//	count, shared   count lines, and merge every pair
func (c *comparing) compare(ctx context.Context, reply *control.SessionCompareReply) error {
	dir, remove, err := disk.TempDir(c.all.State, "compare")
	if err != nil {
		return err
	}
	if c.scratch, err = session.OpenRepo(dir, session.RepoOptions{Format: c.sides[0].o.Repo.Format()}); err != nil {
		return errors.Join(err, remove())
	}
	c.remove = remove
	fork, all, err := c.forkCheckpoint(ctx, c.sides)
	if err != nil {
		return err
	}
	for _, s := range c.sides {
		// If all sides have a common fork point, the changes of each side are relative to that fork point. Otherwise they are
		// relative to the base commit of the side's session.
		if s.base = fork.Tree; all {
			s.reply.BaseCheckpoint = fork.Session + "@" + string(fork.ID)
		} else if s.base, err = s.o.baseTree(ctx); err != nil {
			return err
		}
		s.reply.Changes = []control.PathChange{}
		err := treediff.Trees(ctx, c.tree, s.base, s.checkpoint.Tree, func(path string, from, to object.TreeEntry) error {
			s.want(from, to)
			s.reply.Changes = append(s.reply.Changes, PathChange(path, from, to))
			return nil
		})
		if err != nil {
			return fmt.Errorf("compare %s@%s with its base: %w", s.checkpoint.Session, s.checkpoint.ID, err)
		}
	}
	// The method pairs stores in c.merged which contents the merges need. The method provide fetches these contents later.
	pairs, err := c.pairs(ctx)
	if err != nil {
		return err
	}
	if err := c.provide(ctx); err != nil {
		return fmt.Errorf("fetch contents: %w", err)
	}
	if err := c.count(ctx); err != nil {
		return err
	}
	shared, err := c.shared(ctx, pairs)
	if err != nil {
		return err
	}
	reply.Remote, reply.Shared = c.sides[0].meta.Remote, shared
	for _, s := range c.sides {
		reply.Sides = append(reply.Sides, s.reply)
	}
	return nil
}

// want adds the IDs of the blobs among entries to s.ids, the contents that are fetched for this side.
func (s *compareSide) want(entries ...object.TreeEntry) {
	for _, e := range entries {
		if e.Mode.IsBlob() {
			s.ids = append(s.ids, e.ID)
		}
	}
}

// tree returns the entries of a tree that at least one of the sides contains. It searches all repositories on this host
// before it sends a request to a session remote.
func (c *comparing) tree(ctx context.Context, id object.ID) ([]object.TreeEntry, error) {
	for _, s := range c.sides {
		if entries, err := s.o.Repo.Tree(id); err == nil {
			return entries, nil
		}
	}
	for _, m := range c.mirrors {
		if entries, err := m.Tree(id); err == nil {
			return entries, nil
		}
	}
	// If no repository on this host has the tree, opened.tree may request it from the session remote.
	var last error
	for _, s := range c.sides {
		entries, err := s.o.tree(ctx, id)
		if err == nil {
			return entries, nil
		}
		last = err
	}
	return nil, last
}

// forkCheckpoint returns the checkpoint from which the sessions of all sides were forked; one side may also be the
// parent session itself. ok is false if there is no such checkpoint, or if gc has dropped it.
func (c *comparing) forkCheckpoint(ctx context.Context,
	sides []*compareSide) (p session.Checkpoint, ok bool, err error) {
	var origins []proposals.Origin
	for _, s := range sides {
		origins = append(origins, proposals.Origin{Session: s.checkpoint.Session, From: s.meta.From})
	}
	name, id, ok := proposals.Fork(origins)
	if !ok {
		return p, false, nil
	}
	var parent *compareSide
	for _, s := range sides {
		if s.checkpoint.Session == name && s.meta.From != name+" "+id {
			parent = s
		}
	}
	// A forked session keeps the checkpoint from which it was forked, even if gc has dropped this checkpoint from the
	// parent session. So search the sessions of all sides.
	for _, s := range sides {
		if base, err := s.o.Repo.Ref(session.BaseRef(s.o.Session)); err == nil && !base.IsZero() && s != parent {
			if p, err := s.o.Repo.CheckpointAt(base); err == nil && string(p.ID) == id {
				return p, true, nil
			}
		}
	}
	if parent != nil {
		p, err = parent.o.Find(ctx, id)
	} else if remote := cmp.Or(sides[0].at, sides[0].reply.SessionRemote); remote != "" {
		key := control.CompareSide{Of: name, SessionRemote: remote}
		o := c.opened[key]
		if o == nil {
			if o, err = c.all.openAt(ctx, name, remote, true); err != nil {
				// return no error for a parent session that cannot be opened, because it may have been deleted
				return p, false, ctx.Err()
			}
			c.opened[key] = o
		}
		p, err = o.Find(ctx, id)
	} else {
		return p, false, nil
	}
	return p, err == nil, ctx.Err()
}

// commonTree returns the tree of the merge base of two sides. The merge base is the checkpoint that both sessions were
// forked from, or else the base commit that both share, or else the merge base of their base commits. If the sides have
// no common history, commonTree returns the zero ID, which stands for the empty tree.
func (c *comparing) commonTree(ctx context.Context, a, b *compareSide) (object.ID, error) {
	p, ok, err := c.forkCheckpoint(ctx, []*compareSide{a, b})
	if err != nil || ok {
		return p.Tree, err
	}
	if a.meta.Base == b.meta.Base {
		return a.o.baseTree(ctx)
	}
	x, err1 := object.ParseID(a.meta.Base)
	y, err2 := object.ParseID(b.meta.Base)
	if err1 != nil || err2 != nil { // a session that started on an unborn branch has no base commit
		return object.ID{}, nil
	}
	// The sessions have different base commits. The history between these commits exists on the mounted remote alone.
	m, err := c.mirrorOf(ctx, a)
	if err != nil {
		return object.ID{}, err
	}
	if err := m.History(ctx, x, y); err != nil {
		return object.ID{}, fault.SessionRemote(m.Remote(), err)
	}
	base, err := merge.Base(c.git(m.Dir()).Runner(ctx), x.String(), y.String())
	if err != nil || base.IsZero() {
		return base, err
	}
	tree, err := m.Snapshot(ctx, base)
	if err != nil {
		return tree, fault.SessionRemote(m.Remote(), err)
	}
	return tree, nil
}

// mirrorOf returns a mirror of the mounted remote of the side s, from which objects that no session has can be read.
func (c *comparing) mirrorOf(ctx context.Context, s *compareSide) (*mirror.Mirror, error) {
	url := s.meta.Remote
	if m := c.mirrors[url]; m != nil {
		return m, nil
	}
	m, err := c.all.mirrorFor(ctx, c.all.originRequest(url))
	if err == nil {
		c.mirrors[url] = m
	}
	return m, err
}
