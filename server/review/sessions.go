package review

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
)

// Session is a session of a repository.
type Session struct {
	Name   string
	Meta   session.Meta // zero if it cannot be read
	Damage string       // why the metadata cannot be read; "" if they can
	Newest string       // id of the newest checkpoint; "" if there is none, or none that the server can read
	Thin   bool         // the repository lacks the files on which the session is based (package thin)
}

// Sessions returns the sessions whose names come after a name, in the order of their names, at most limit. The result
// more reports whether others follow.
func (s *Service) Sessions(ctx context.Context, by By, repo records.Repo, after string,
	limit int) (list []Session, more bool, err error) {
	err = s.look(ctx, by, repo, func(v *view) error {
		names := v.names(after)
		if more = len(names) > limit; more {
			names = names[:limit]
		}
		list, err = v.describe(ctx, names)
		return err
	})
	return list, more, err
}

// names returns the sorted names of the sessions whose names come after a name.
func (v *view) names(after string) (names []string) {
	for ref := range v.refs {
		if name, ok := strings.CutPrefix(ref, session.MetaRef("")); ok && name > after && session.ValidName(name) == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Session returns a session.
func (s *Service) Session(ctx context.Context, by By, repo records.Repo, name string) (found Session, err error) {
	err = s.look(ctx, by, repo, func(v *view) error {
		if err := v.session(name); err != nil {
			return err
		}
		list, err := v.describe(ctx, []string{name})
		if err == nil {
			found = list[0]
		}
		return err
	})
	return found, err
}

// describe reads sessions that exist.
func (v *view) describe(ctx context.Context, names []string) ([]Session, error) {
	lanes := map[string]string{}
	wanted := map[string]bool{}
	for _, name := range names {
		wanted[name] = true
	}
	for ref, id := range v.shown {
		if rest, ok := strings.CutPrefix(ref, session.Prefix+"j/"); ok {
			if name, _, _ := strings.Cut(rest, "/"); wanted[name] {
				lanes[ref] = id
			}
		}
	}
	newest, err := v.git.Newest(ctx, lanes)
	if err != nil {
		return nil, err
	}
	list := make([]Session, len(names))
	return list, v.git.EachMeta(ctx, v.refs, names, func(i int, m session.Meta, damage error) {
		name := names[i]
		list[i] = Session{Name: name, Meta: m, Newest: newest[name].ID, Thin: v.refs[thin.Prefix+name] != ""}
		if damage != nil {
			list[i].Meta, list[i].Damage = session.Meta{}, damage.Error()
		}
	})
}

// Checkpoint is a checkpoint of a session with its pins.
type Checkpoint struct {
	session.Checkpoint
	Pins []string // sorted
}

// Checkpoints returns the checkpoints of a session that are older than the one with the id before, "" for all, the
// newest first, at most limit. The result more reports whether older ones follow.
func (s *Service) Checkpoints(ctx context.Context, by By, repo records.Repo, name, before string, limit int) (
	list []Checkpoint, more bool, err error) {
	err = s.look(ctx, by, repo, func(v *view) error {
		m, err := v.meta(ctx, name)
		if err != nil {
			return err
		}
		own := v.of(name)
		pins := map[string][]string{}
		for ref, commit := range own {
			if pin, ok := strings.CutPrefix(ref, session.PinPrefix(name)); ok {
				pins[commit] = append(pins[commit], pin)
			}
		}
		points, err := v.git.Checkpoints(ctx, own, name, m.Began)
		if err != nil {
			return err
		}
		if before != "" {
			end, _ := slices.BinarySearchFunc(points, before,
				func(p gitread.Point, id string) int { return cmp.Compare(p.ID, id) })
			points = points[:end]
		}
		more = len(points) > limit
		points = points[max(0, len(points)-limit):]
		slices.Reverse(points)
		return v.read(ctx, points, func(p session.Checkpoint) {
			found := pins[p.Commit.String()]
			slices.Sort(found)
			list = append(list, Checkpoint{p, found})
		})
	})
	return list, more, err
}

// read reads checkpoints. Those that are not valid are left out.
func (v *view) read(ctx context.Context, points []gitread.Point, do func(p session.Checkpoint)) error {
	var commits []string
	for _, p := range points {
		commits = append(commits, p.Commit)
	}
	return v.git.Contents(ctx, commits, object.MaxCommitSize, func(_ int, c read.Content) {
		if p, err := gitread.CheckpointOf(c); err == nil {
			do(p)
		}
	})
}
