package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/writeback"
)

// ModeNone is the mode that the status of a session shows if nothing is pushed.
const ModeNone = "none"

// Status returns the status of the session, without the URL of the session remote.
func (a *Agent) Status() control.SessionStatus {
	s := control.SessionStatus{Name: a.config.Session}
	if !a.config.Writable {
		return s
	}
	if !a.Active() {
		s.Mode = ModeNone
		return s
	}
	changed, last := a.config.Tree.Changed() > 0, a.config.Tree.LastChange()
	if at := a.git.last(); at.After(last) {
		last = at
	}
	a.mu.Lock()
	s.Policy, s.State, s.Lane, s.Checkpoints = a.options.Policy, string(session.Active), a.lane.Name, a.checkpoints.count
	if s.Lane == "" {
		s.Lane = session.MainLane
	}
	s.TakenOverBy = a.takenBy()
	if a.options.Remote == control.RemoteEmbedded {
		s.Mode = string(writeback.ModeEmbedded)
	}
	ShowNewest(&s, a.checkpoints.newest)
	s.Dirty = last.After(a.checkpoints.seen)
	// If there is no checkpoint, the latest change of the git directory is its creation by this process, so this change is
	// not counted.
	if a.checkpoints.newest.ID == "" {
		s.Dirty = changed
	}
	queue := a.work.queue
	a.mu.Unlock()
	if queue != nil {
		ShowQueue(&s, queue.Status())
	}
	a.problems.mu.Lock()
	defer a.problems.mu.Unlock()
	for _, operation := range slices.Sorted(maps.Keys(a.problems.failed)) {
		s.Error = fmt.Sprintf("%s: %v", operation, a.problems.failed[operation])
	}
	return s
}

// Notices returns the notes for the user that the status of the mount shows: warnings about checkpoints and pushes.
func (a *Agent) Notices() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	notes := slices.Clone(a.notes)
	if a.checkpoints.old >= oldLimit {
		notes = append(notes,
			fmt.Sprintf("%d checkpoints are older than 7 days; artifactfs session gc keeps the last checkpoint of each day "+
				"and pinned checkpoints", a.checkpoints.old))
	}
	if len(a.checkpoints.unread) > 0 {
		notes = append(notes,
			fmt.Sprintf("ignore file %s could not be read: the last checkpoint may contain ignored files; the "+
				"next one reads it "+
				"again", strings.Join(a.checkpoints.unread, ", ")))
	}
	if len(a.checkpoints.unfiltered) > 0 {
		notes = append(notes, unfilteredText(a.checkpoints.unfiltered))
	}
	if a.work.queue == nil {
		return notes
	}
	st := a.work.queue.Status()
	if st.Seeding {
		notes = append(notes, fmt.Sprintf("history of the base commit is pushed to the session remote first: %s",
			seedProgress(st)))
	}
	for _, ref := range st.Behind {
		name, id, _ := strings.Cut(ref, ": ")
		notes = append(notes, AheadText(name, id))
	}
	for _, ref := range st.Refused {
		notes = append(notes, "session remote rejected "+ref)
	}
	return append(notes, st.Notices...)
}

// unfilteredText returns the note for the user about files that a required filter could not convert.
func unfilteredText(files []string) string {
	const named = 3
	names := strings.Join(files[:min(named, len(files))], ", ")
	if more := len(files) - named; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return "required filter failed: the last checkpoint does not have the present contents of " + names +
		"; the next one tries again"
}

// AheadText returns the note for the user about a ref that has commits on the session remote that this host does not
// have. id is the commit of the ref on the session remote.
func AheadText(ref, id string) string {
	return fmt.Sprintf("%s on the session remote has commits that are not in the newest checkpoint; run git merge %.12s to merge them",
		statedir.ShortRef(ref), id)
}

// seedProgress returns the progress, in MiB, of the push that copies the history of the mounted remote to the session
// remote.
func seedProgress(st writeback.Status) string {
	if st.SeedSize == 0 {
		return fmt.Sprintf("%d MiB so far", st.Seeded>>20)
	}
	return fmt.Sprintf("%d of %d MiB", st.Seeded>>20, st.SeedSize>>20)
}

// ShowNewest adds the newest checkpoint p to a status. It does nothing if p has no ID, which means that there is no
// checkpoint.
func ShowNewest(s *control.SessionStatus, p session.Checkpoint) {
	if p.ID == "" {
		return
	}
	at := p.Time
	s.LastCheckpoint, s.LastCheckpointAt = string(p.ID), &at
}

// ShowQueue adds the status of a push queue to the status of its session.
func ShowQueue(s *control.SessionStatus, st writeback.Status) {
	s.Mode, s.Pending, s.Branches = string(st.Mode), int64(st.Pending), st.Layout.Pattern()
	s.Sent, s.Received, s.Seeded = st.Traffic.Sent, st.Traffic.Received, st.Traffic.Seeded
	s.DivergedRefs = divergedRefs(st)
	for _, d := range st.Diverged {
		s.Diverged = append(s.Diverged, d.Ref)
	}
	if !st.PendingSince.IsZero() {
		at := st.PendingSince
		s.PendingSince = &at
	}
	if !st.LastSync.IsZero() {
		at := st.LastSync
		s.LastSync = &at
	}
	if st.Failure != nil {
		s.Error = st.Failure.Error()
	}
	if gone := new(writeback.DeletedError); errors.As(st.Failure, &gone) {
		s.Error += "; " + gone.Remedy()
	}
}

// divergedRefs returns the diverged refs in the status of a push queue in the form of a session status.
func divergedRefs(st writeback.Status) (refs []control.DivergedRef) {
	for _, d := range st.Diverged {
		refs = append(refs, control.DivergedRef{Ref: d.Ref, RemoteRef: d.There, KeptRef: d.Ours, BlockedBy: d.InWay})
	}
	return refs
}
