package daemon

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/writeback"
	"github.com/artifactfs/artifactfs/statedir"
)

const modeNone = "none" // of a mount of which nothing is carried away

// status tells how the mount's work is carried.
func (c *carry) status() control.SessionStatus {
	m := c.mount
	s := control.SessionStatus{Name: m.session}
	if !m.writable() {
		return s
	}
	if !c.carries() {
		s.Mode = modeNone
		return s
	}
	changed, last := m.changed() > 0, m.tree.LastChange()
	if at := c.git.last(); at.After(last) {
		last = at
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Policy, s.State, s.Lane, s.Checkpoints = c.options.Policy, string(session.Active), c.lane.Name, c.points
	if s.Lane == "" {
		s.Lane = session.MainLane
	}
	s.TakenOverBy = c.takenBy()
	s.SessionRemote = shownRemote(c.options.Remote, m.home.Dir, m.record)
	if c.options.Remote == control.RemoteEmbedded {
		s.Mode = string(writeback.ModeEmbedded)
	}
	setLast(&s, c.last)
	s.Dirty = last.After(c.seen)
	if c.last.ID == "" { // what moves in the git directory of an untouched mount is our own doing
		s.Dirty = changed
	}
	if c.queue != nil {
		setQueue(&s, c.queue.Status())
	}
	for _, what := range slices.Sorted(maps.Keys(c.failed)) {
		s.Error = fmt.Sprintf("%s: %v", what, c.failed[what])
	}
	return s
}

// notices are what is worth a line of its own.
func (c *carry) notices() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	notes := slices.Clone(c.notes)
	if c.old >= manyOld {
		notes = append(notes, fmt.Sprintf("%d checkpoints are older than 7 days; artifactfs session gc keeps the last of each day, and pinned ones", c.old))
	}
	if len(c.unread) > 0 {
		notes = append(notes, fmt.Sprintf("%s could not be read: the last checkpoint may hold what it ignores, and the next one tries again", strings.Join(c.unread, ", ")))
	}
	if c.queue == nil {
		return notes
	}
	st := c.queue.Status()
	if st.Seeding {
		notes = append(notes, fmt.Sprintf("the session remote gets the history that the session stands on first: %s", seedText(st)))
	}
	for _, ref := range st.Behind {
		name, id, _ := strings.Cut(ref, ": ")
		notes = append(notes, aheadText(name, id))
	}
	for _, ref := range st.Refused {
		notes = append(notes, "the session remote does not take "+ref)
	}
	return append(notes, st.Notices...)
}

// aheadText tells of a ref of which the session remote has more than is here.
func aheadText(ref, id string) string {
	return fmt.Sprintf("the session remote's %s has commits that the newest checkpoint does not include; git merge %.12s merges them", statedir.ShortRef(ref), id)
}

// lostText tells of a ref that was moved after the last point of a session that died.
func lostText(ref, id string) string {
	return fmt.Sprintf("%s was moved to %.12s after that checkpoint, just before the end; it is kept: git show %.12s", statedir.ShortRef(ref), id, id)
}

func seedText(st writeback.Status) string {
	if st.SeedSize == 0 {
		return fmt.Sprintf("%d MiB so far", st.Seeded>>20)
	}
	return fmt.Sprintf("%d of %d MiB", st.Seeded>>20, st.SeedSize>>20)
}

// shownRemote is a session remote without secrets, as status shows it; of the embedded one it is the path.
func shownRemote(remote, home string, r statedir.Record) string {
	switch remote {
	case control.RemoteEmbedded, "":
		return filepath.Join(home, statedir.SessionRepoName)
	case control.RemoteOrigin:
		return r.Remote
	case control.RemoteNone:
		return ""
	}
	return fault.WithoutSecrets(remote)
}

func setLast(s *control.SessionStatus, p session.Point) {
	if p.ID == "" {
		return
	}
	at := p.Time
	s.LastCheckpoint, s.LastCheckpointAt = string(p.ID), &at
}

func setQueue(s *control.SessionStatus, st writeback.Status) {
	s.Mode, s.Pending, s.Branches = string(st.Mode), int64(st.Pending), st.Layout.Pattern()
	s.Sent, s.Received, s.Seeded = st.Traffic.Sent, st.Traffic.Received, st.Traffic.Seeded
	s.DivergedRefs = divergedRefs(st)
	for _, d := range st.Diverged {
		s.Diverged = append(s.Diverged, d.Ref)
	}
	if !st.LastSync.IsZero() {
		at := st.LastSync
		s.LastSync = &at
	}
	if st.Failure != nil {
		s.Error = st.Failure.Error()
	}
}

func divergedRefs(st writeback.Status) (refs []control.DivergedRef) {
	for _, d := range st.Diverged {
		refs = append(refs, control.DivergedRef{Ref: d.Ref, RemoteRef: d.There, KeptRef: d.Ours, BlockedBy: d.InWay})
	}
	return refs
}

// progressOf tells of a queue at work.
func progressOf(progress func(control.Progress)) func(writeback.Status) {
	return func(st writeback.Status) {
		p := control.Progress{Phase: "sync", Total: int64(st.Pending), Unit: "refs"}
		if st.Seeding {
			p = control.Progress{Phase: "seed", Done: st.Seeded, Total: st.SeedSize, Unit: "bytes"}
		}
		progress(p)
	}
}

// synced says of a point whether the session remote has it.
func (o *opened) synced(p session.Point) bool {
	if o.acknowledged == nil {
		return false
	}
	return o.acknowledged(p)
}

// shownPoint is a point as it is told of.
func (o *opened) shown(p session.Point) control.Checkpoint {
	s := control.Checkpoint{
		ID: string(p.ID), Session: p.Session, Lane: p.Lane, Commit: p.Commit.String(), Tree: p.Tree.String(), Branch: statedir.ShortRef(p.Branch),
		Reason: string(p.Reason), Message: p.Message, Time: p.Time.In(time.UTC), Prev: string(p.Prev), Changed: p.Changed, Bytes: p.Bytes, Excluded: p.Left,
		Pins: o.pins[p.ID], Synced: o.synced(p),
	}
	if !p.Head.IsZero() {
		s.Head = p.Head.String()
	}
	return s
}

// figures are those of this process.
func (c *carry) figures() figures {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.counted
	if c.queue != nil {
		f.pushed = c.queue.Figures()
	}
	return f
}
