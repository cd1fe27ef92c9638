package capture

import (
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
)

// onlyOthersNotes reports whether git's state differs from that of the last checkpoint only by notes refs into which
// notes of other sessions were merged. info is the commit of the last checkpoint's state.
func (c *Capturer) onlyOthersNotes(s *shot, last session.Checkpoint, info object.CommitInfo) (bool, error) {
	if c.o.OthersNotes == nil {
		return false, nil
	}
	now := s.state.State
	notes := map[object.ID]bool{}
	now.Refs = slices.DeleteFunc(slices.Clone(now.Refs), func(r packedrefs.Ref) bool {
		notes[r.ID] = notes[r.ID] || c.isOthersNotes(r)
		return c.isOthersNotes(r)
	})
	if len(notes) == 0 {
		return false, nil
	}
	before, err := c.o.Repo.State(last)
	if err != nil {
		return false, err
	}
	for _, r := range before.Refs { // replace the values of these refs by those of the last checkpoint
		if i := slices.IndexFunc(s.state.Refs, func(n packedrefs.Ref) bool { return n.Name == r.Name }); i >= 0 &&
			c.isOthersNotes(s.state.Refs[i]) {
			notes[r.ID] = true
			now.Refs = append(now.Refs, r)
		}
	}
	slices.SortFunc(now.Refs, func(a, b packedrefs.Ref) int { return strings.Compare(a.Name, b.Name) })
	others := func(ids []object.ID) []object.ID {
		return slices.DeleteFunc(slices.Clone(ids), func(id object.ID) bool { return notes[id] })
	}
	_, objects, err := session.EncodeState(c.format, now, s.state.parents, time.Time{})
	if err != nil {
		return false, err
	}
	return objects[len(objects)-2].ID == info.Tree && slices.Equal(others(info.Parents), others(s.state.parents)), nil
}

// isOthersNotes reports whether r is a notes ref whose value is the result of merging notes of other sessions.
func (c *Capturer) isOthersNotes(r packedrefs.Ref) bool {
	return strings.HasPrefix(r.Name, "refs/notes/") && c.o.OthersNotes(r.Name) == r.ID
}
