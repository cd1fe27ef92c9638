package writeback

import (
	"context"
	"maps"
	"slices"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/writeback/objects"
)

// maxMissing is the number of refusals because of missing objects after which a push contains all objects that
// selector.load can add.
const maxMissing = 3

// selector selects the objects that a push sends.
type selector struct {
	repo   *session.Repo
	store  objects.Provider // nil if objects of the mounted remote cannot be fetched
	base   Mode             // QueueOptions.Base
	seeder *seeder          // finds the base commits that the session remote lacks

	// sent is the set of the objects that the session remote is known to have; nil if it is not computed yet.
	sent objects.Set
}

// pushed records that the session remote now has the objects ids.
func (s *selector) pushed(ids []object.ID) {
	for _, id := range ids {
		s.sent[id] = true
	}
}

// forget drops the set of the objects that the session remote has. The next push computes it again.
func (s *selector) forget() { s.sent = nil }

// load returns the objects that have to be sent with the updates, and the updates that can be sent. If the session
// remote lacks base commits, load returns them in need, and leaves out the updates that depend on them. theirs contains
// the refs of the session remote.
//
// missing is the number of pushes of the round that the session remote has refused because it lacks objects. Each of
// these pushes contains more objects than the previous one: after the first refusal, all objects that are not reachable
// from the refs of the session remote, because the caller calls forget; after the second, the base commits are checked
// again; after the third, all objects of the mounted remote to which a pushed object refers.
func (s *selector) load(ctx context.Context, push *thin.Push, updates []update, l *ledger, theirs map[string]object.ID,
	missing int) (load *objects.Selection, rest []update, need []object.ID, err error) {
	if s.sent == nil {
		var have []object.ID
		for _, r := range l.refs {
			if !r.acked.IsZero() && s.repo.Owned(r.acked) {
				have = append(have, r.acked)
			}
		}
		had, err := objects.Reached(ctx, s.repo, have)
		if err != nil {
			return nil, nil, nil, err
		}
		s.sent = had
	}
	h, err := objects.Select(ctx, s.repo, tipsOf(updates), s.sent)
	if err != nil {
		return nil, nil, nil, err
	}
	if push.Thin() {
		return h, updates, nil, nil
	}
	lacks, err := s.seeder.missingBases(ctx, h.BaseCommits, l, theirs, missing >= 2)
	if err == nil && len(lacks) > 0 && s.base == ModeShared {
		err = errNoBase
	}
	if err != nil {
		return nil, nil, nil, err
	}
	if len(lacks) == 0 && missing >= maxMissing {
		err = h.Fill(ctx, slices.Collect(maps.Keys(l.baseCommits)), s.store)
	}
	if len(lacks) == 0 {
		return h, updates, lacks, err
	}
	updates = slices.DeleteFunc(updates, func(u update) bool {
		return !u.New.IsZero() && !isFirst(u.from, s.repo.Session())
	})
	h, err = objects.Select(ctx, s.repo, tipsOf(updates), s.sent)
	return h, updates, lacks, err
}

// tipsOf returns the new object ids of all updates that do not remove a ref.
func tipsOf(updates []update) []object.ID {
	var tips []object.ID
	for _, u := range updates {
		if !u.New.IsZero() {
			tips = append(tips, u.New)
		}
	}
	return tips
}
