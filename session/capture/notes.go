package capture

import (
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/session"
)

// onlyOthersRefs reports whether git's state differs from that of the last checkpoint only by refs that change without
// the user: refs below refs/remotes/, tags of the mounted remote, and notes refs into which notes of other sessions
// were merged. info is the commit that stores the state of the last checkpoint.
func (c *Capturer) onlyOthersRefs(s *shot, last session.Checkpoint, info object.CommitInfo) (bool, error) {
	before, err := c.o.Repo.State(last)
	if err != nil {
		return false, err
	}
	var tags []packedrefs.Ref
	if c.o.InitialState != nil && c.o.InitialState.Refs != nil {
		tags = c.o.InitialState.Refs()
	}
	// names are the refs whose values are ignored, and ids are these values, which are also ignored as parents of the
	// states.
	names, ids := map[string]bool{}, map[object.ID]bool{}
	for _, r := range s.state.Refs {
		theirs := strings.HasPrefix(r.Name, "refs/tags/") && slices.ContainsFunc(tags, func(t packedrefs.Ref) bool {
			return t.Name == r.Name && t.ID == r.ID
		})
		names[r.Name] = theirs || c.isOthersNotes(r)
	}
	reduced := func(state session.State) (object.ID, error) {
		state.Remote = nil
		state.Refs = slices.DeleteFunc(slices.Clone(state.Refs), func(r packedrefs.Ref) bool {
			if names[r.Name] {
				ids[r.ID] = true
			}
			return names[r.Name]
		})
		_, objects, err := session.EncodeState(c.format, state, nil, time.Time{})
		if err != nil {
			return object.ID{}, err
		}
		return objects[len(objects)-2].ID, nil // the tree; the last object is the commit
	}
	x, err := reduced(before)
	if err != nil {
		return false, err
	}
	y, err := reduced(s.state.State)
	if err != nil {
		return false, err
	}
	own := func(parents []object.ID) []object.ID {
		return slices.DeleteFunc(slices.Clone(parents), func(id object.ID) bool { return ids[id] })
	}
	return x == y && slices.Equal(own(info.Parents), own(s.state.parents)), nil
}

// isOthersNotes reports whether r is a notes ref whose value is the result of merging notes of other sessions.
func (c *Capturer) isOthersNotes(r packedrefs.Ref) bool {
	return c.o.OthersNotes != nil && strings.HasPrefix(r.Name, "refs/notes/") && c.o.OthersNotes(r.Name) == r.ID
}
