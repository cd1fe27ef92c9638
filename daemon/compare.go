package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/mirror"
	"github.com/artifactfs/artifactfs/statedir"
)

// A comparison reads each side where it is: in its repository here, or through a mirror of its session remote. git compares and
// merges in a scratch repository that has the objects of all of them as alternates. Contents are brought there before, those of
// changed files alone.

// compareSide is one checkpoint that is compared.
type compareSide struct {
	o     *opened
	meta  session.Meta
	point session.Point
	base  object.ID // tree that its changes are counted from
	ids   []object.ID
	reply control.ComparedSide
}

// comparing is one comparison under way.
type comparing struct {
	d       *Daemon
	sides   []*compareSide
	mirrors map[string]*mirror.Mirror // of mounted remotes, by URL
	opened  map[control.CompareSide]*opened
	scratch *session.Repo
	merged  []object.ID // contents that git reads to merge the sides
}

// SessionCompare says what several sessions changed, and whether the changes go together.
func (d *Daemon) SessionCompare(ctx context.Context, r control.SessionCompareRequest) (control.SessionCompareReply, error) {
	reply := control.SessionCompareReply{Sides: []control.ComparedSide{}, Shared: []control.SharedPath{}}
	c := &comparing{d: d, mirrors: map[string]*mirror.Mirror{}, opened: map[control.CompareSide]*opened{}}
	defer c.close()
	for _, side := range r.Sides {
		if err := c.open(ctx, side, r.Dir); err != nil {
			return reply, fault.ExplainSessionAt("compare", "session "+side.Of, err)
		}
	}
	if err := c.compare(ctx, &reply); err != nil {
		return reply, fault.ExplainSessionAt("compare", "sessions", err)
	}
	return reply, nil
}

func (c *comparing) close() {
	for _, o := range c.opened {
		o.close()
	}
	for _, m := range c.mirrors {
		c.d.closeMirror(m)
	}
	if c.scratch != nil {
		if err := errors.Join(c.scratch.Close(), os.RemoveAll(c.scratch.Dir())); err != nil {
			c.d.log.Sugar().Warnf("remove the repository of a comparison: %v", err)
		}
	}
}

// open finds the checkpoint of a side. A session is opened once, however many of its checkpoints are compared.
func (c *comparing) open(ctx context.Context, r control.CompareSide, dir string) (err error) {
	key := control.CompareSide{Of: r.Of, SessionRemote: r.SessionRemote}
	o := c.opened[key]
	if o == nil {
		o, err = c.d.openAt(ctx, r.Of, r.SessionRemote, true)
		if errors.Is(err, statedir.ErrNoSession) && r.SessionRemote == "" && dir != "" {
			if m, ok := c.d.find(dir); ok {
				o, err = c.d.openBeside(ctx, m, r.Of, err)
			}
		}
		if err != nil {
			return err
		}
		c.opened[key] = o
	}
	s := &compareSide{o: o}
	if o.repo == nil {
		return fault.ErrNoCheckpoint
	}
	if s.point, err = o.find(ctx, r.ID); err != nil {
		return err
	}
	if o.far != nil {
		s.meta, _ = o.far.Meta(o.session)
		s.reply.SessionRemote = o.far.Remote().URL()
	} else if s.meta, _, err = session.ReadMeta(o.repo, o.session); err != nil {
		return err
	}
	if len(c.sides) > 0 && c.sides[0].meta.Remote != s.meta.Remote {
		return fmt.Errorf("%w: %s", fault.ErrOtherRemote, s.meta.Remote)
	}
	s.reply.Checkpoint, s.reply.Base, s.reply.Users = o.shown(s.point), s.meta.Base, []string{}
	for _, t := range s.meta.Transitions {
		if t.Actor != "" && !slices.Contains(s.reply.Users, t.Actor) {
			s.reply.Users = append(s.reply.Users, t.Actor)
		}
	}
	c.sides = append(c.sides, s)
	return nil
}

// openBeside opens a session on the session remote of a mount; missing is the error if the mount has none.
func (d *Daemon) openBeside(ctx context.Context, m *mount, name string, missing error) (*opened, error) {
	r := m.requestNow()
	r.Session, r.SessionOptions = name, m.agent.Options()
	if at, _ := sessionURL(r); at == "" {
		return nil, missing
	}
	return d.openThere(ctx, r, true)
}

func (c *comparing) compare(ctx context.Context, reply *control.SessionCompareReply) error {
	dir, err := os.MkdirTemp(c.d.state, "compare-*.tmp")
	if err != nil {
		return err
	}
	if c.scratch, err = session.OpenRepo(dir, session.RepoOptions{Format: c.sides[0].o.repo.Format()}); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	fork, all, err := c.forkPoint(ctx, c.sides)
	if err != nil {
		return err
	}
	for _, s := range c.sides {
		if s.base = fork.Tree; all {
			s.reply.BaseCheckpoint = fork.Session + "@" + string(fork.ID)
		} else if s.base, err = s.o.baseTree(ctx); err != nil {
			return err
		}
		s.reply.Changes = []control.PathChange{}
		err := diffTrees(ctx, c.tree, s.base, s.point.Tree, func(path string, from, to object.TreeEntry) error {
			s.want(from, to)
			s.reply.Changes = append(s.reply.Changes, pathChange(path, from, to))
			return nil
		})
		if err != nil {
			return fmt.Errorf("compare %s@%s with its base: %w", s.point.Session, s.point.ID, err)
		}
	}
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

// want has the contents of entries fetched from where the side is.
func (s *compareSide) want(entries ...object.TreeEntry) {
	for _, e := range entries {
		if e.Mode.IsBlob() {
			s.ids = append(s.ids, e.ID)
		}
	}
}

// tree reads a tree that any of the sides has, without a request if one can do without.
func (c *comparing) tree(ctx context.Context, id object.ID) ([]object.TreeEntry, error) {
	for _, s := range c.sides {
		if entries, err := s.o.repo.Tree(id); err == nil {
			return entries, nil
		}
	}
	for _, m := range c.mirrors {
		if entries, err := m.Tree(id); err == nil {
			return entries, nil
		}
	}
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

// forkPoint returns the checkpoint that all sides come from: one of them is of the session that the others were forked from,
// or all were forked from the same checkpoint. ok is false if there is none, or if it was dropped.
func (c *comparing) forkPoint(ctx context.Context, sides []*compareSide) (p session.Point, ok bool, err error) {
	from := ""
	var parent *compareSide
	for _, s := range sides {
		if s.meta.From != "" {
			from = s.meta.From
		}
	}
	name, id, _ := strings.Cut(from, " ")
	for _, s := range sides {
		switch {
		case s.meta.From == from && from != "":
		case s.point.Session == name && name != "":
			parent = s
		default:
			return p, false, nil
		}
	}
	// A session that began at the checkpoint keeps it, and so does its parent until gc drops it.
	for _, s := range sides {
		if base, err := s.o.repo.Ref(session.BaseRef(s.o.session)); err == nil && !base.IsZero() && s != parent {
			if p, err := s.o.repo.PointAt(base); err == nil && string(p.ID) == id {
				return p, true, nil
			}
		}
	}
	if parent != nil {
		p, err = parent.o.find(ctx, id)
	} else if remote := sides[0].reply.SessionRemote; remote != "" {
		key := control.CompareSide{Of: name, SessionRemote: remote}
		o := c.opened[key]
		if o == nil {
			if o, err = c.d.openAt(ctx, name, remote, true); err != nil {
				return p, false, ctx.Err() // the parent is not there any more
			}
			c.opened[key] = o
		}
		p, err = o.find(ctx, id)
	} else {
		return p, false, nil
	}
	return p, err == nil, ctx.Err()
}

// commonTree returns the tree that the work of two sides began with: of the checkpoint that both come from, of the commit that
// both sessions began with, or of the merge base of the two commits.
func (c *comparing) commonTree(ctx context.Context, a, b *compareSide) (object.ID, error) {
	p, ok, err := c.forkPoint(ctx, []*compareSide{a, b})
	if err != nil || ok {
		return p.Tree, err
	}
	if a.meta.Base == b.meta.Base {
		return a.o.baseTree(ctx)
	}
	x, err1 := object.ParseID(a.meta.Base)
	y, err2 := object.ParseID(b.meta.Base)
	if err1 != nil || err2 != nil { // one of them began on an unborn branch
		return object.ID{}, nil
	}
	m, err := c.mirrorOf(ctx, a)
	if err != nil {
		return object.ID{}, err
	}
	if err := m.History(ctx, x, y); err != nil {
		return object.ID{}, fault.SessionRemote(m.Remote(), err)
	}
	out, err := c.git(ctx, m.Dir(), "merge-base", x.String(), y.String())
	if fault.IsGit(err) { // they have no common history
		return object.ID{}, nil
	}
	if err != nil {
		return object.ID{}, err
	}
	base, err := object.ParseID(strings.TrimSpace(string(out)))
	if err != nil {
		return base, err
	}
	tree, err := m.Snapshot(ctx, base)
	if err != nil {
		return tree, fault.SessionRemote(m.Remote(), err)
	}
	return tree, nil
}

// mirrorOf returns a mirror of the mounted remote of a side, for what no session has.
func (c *comparing) mirrorOf(ctx context.Context, s *compareSide) (*mirror.Mirror, error) {
	url := s.meta.Remote
	if m := c.mirrors[url]; m != nil {
		return m, nil
	}
	r := control.MountRequest{Remote: url, SessionOptions: control.SessionOptions{Remote: control.RemoteOrigin}}
	for _, s := range c.sides {
		if s.o.mount != nil {
			r = s.o.mount.requestNow()
			r.SessionOptions = control.SessionOptions{Remote: control.RemoteOrigin}
		}
	}
	m, err := c.d.mirrorFor(ctx, r)
	if err == nil {
		c.mirrors[url] = m
	}
	return m, err
}
