package session

import (
	"fmt"
	"strings"

	"github.com/artifactfs/artifactfs/internal/refname"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
)

// OwnerRef of a session remote names a blob that holds the name of the session to which the plain names of branches and tags
// there belong. It is created once, by compare-and-swap, and only on a session remote that was empty. All other sessions, and
// all sessions on a repository that is in use by people, keep their branches and tags under names of their own.
const OwnerRef = Prefix + "owner"

const (
	// BranchesAsIs asks for branches under their own names, on any session remote.
	BranchesAsIs = "as-is"
	// DefaultBranches is the pattern of branches on a session remote that is not the session's own.
	DefaultBranches = "afs/{session}/{branch}"

	sessionField = "{session}"
	branchField  = "{branch}"

	headsPrefix = "refs/heads/"
	tagsPrefix  = "refs/tags/"
	notesPrefix = "refs/notes/"
)

// Layout maps the names of branches, tags and notes in a mount to their names on the session remote, and back. All other refs
// of a session have the same name in both places.
type Layout struct {
	Session  string
	Branches string // BranchesAsIs, or a pattern with {branch}; "": as they are if Own, else DefaultBranches
	Own      bool   // the plain names on the session remote are the session's: see OwnerRef
}

// OwnerBlob returns the object that OwnerRef names if a session owns the plain names.
func OwnerBlob(f object.Format, session string) (odb.Outgoing, error) {
	return Outgoing(f, object.Blob, []byte(session+"\n"))
}

// TagsPrefix is where tags of a session are on a session remote that is not its own: release pipelines listen to refs/tags/.
func TagsPrefix(session string) string { return Prefix + "tags/" + session + "/" }

// ValidBranches returns an error unless pattern can name branches for Layout.Branches.
func ValidBranches(pattern string) error {
	switch {
	case pattern == "" || pattern == BranchesAsIs:
		return nil
	case strings.Count(pattern, branchField) != 1:
		return fmt.Errorf("%.100q does not have {branch} in it exactly once, as %s has", pattern, DefaultBranches)
	case strings.Count(pattern, sessionField) > 1:
		return fmt.Errorf("%.100q has {session} in it more than once", pattern)
	}
	name := headsPrefix + strings.NewReplacer(sessionField, "s", branchField, "b").Replace(pattern)
	if !refname.Valid(name) || strings.ContainsAny(name, "{}") || strings.HasPrefix(pattern, "-") || strings.HasPrefix(pattern, "refs/") {
		return fmt.Errorf("%.100q makes no names of branches that git takes; an example is %s", pattern, DefaultBranches)
	}
	return nil
}

// asIs reports whether branches keep their names on the session remote.
func (l Layout) asIs() bool { return l.Branches == BranchesAsIs || l.Branches == "" && l.Own }

// Pattern returns how branches are named on the session remote, with {branch} in it: "{branch}", "afs/fix/{branch}".
func (l Layout) Pattern() string {
	pattern := l.Branches
	switch {
	case l.asIs():
		pattern = branchField
	case pattern == "":
		pattern = DefaultBranches
	}
	return strings.ReplaceAll(pattern, sessionField, l.Session)
}

// There returns the name on the session remote of a ref of the mount.
func (l Layout) There(ref string) string {
	if branch, ok := strings.CutPrefix(ref, headsPrefix); ok {
		return headsPrefix + strings.Replace(l.Pattern(), branchField, branch, 1)
	}
	if tag, ok := strings.CutPrefix(ref, tagsPrefix); ok && !l.Own {
		return TagsPrefix(l.Session) + tag
	}
	return ref
}

// Here returns the branch, tag or notes ref of the mount that has a name on the session remote; false: it is none of this
// session.
func (l Layout) Here(there string) (ref string, ok bool) {
	switch {
	case strings.HasPrefix(there, headsPrefix):
		before, after, _ := strings.Cut(headsPrefix+l.Pattern(), branchField)
		branch, ok := strings.CutPrefix(there, before)
		if ok {
			branch, ok = strings.CutSuffix(branch, after)
		}
		return headsPrefix + branch, ok && branch != ""
	case strings.HasPrefix(there, notesPrefix):
		return there, true
	case strings.HasPrefix(there, tagsPrefix):
		return there, l.Own
	}
	tag, ok := strings.CutPrefix(there, TagsPrefix(l.Session))
	return tagsPrefix + tag, ok && !l.Own && tag != ""
}

// Exclusive reports whether no other session writes the ref of this name on the session remote, so that it may be moved to
// what does not contain its old value.
func (l Layout) Exclusive(there string) bool {
	switch {
	case strings.HasPrefix(there, notesPrefix):
		return false
	case strings.HasPrefix(there, headsPrefix):
		return l.Own || l.Branches == "" || strings.Contains(l.Branches, sessionField)
	case strings.HasPrefix(there, tagsPrefix):
		return l.Own
	}
	return true
}

// Prefixes returns the beginnings of the names on the session remote of all branches, tags and notes that Here maps.
func (l Layout) Prefixes() []string {
	before, _, _ := strings.Cut(headsPrefix+l.Pattern(), branchField)
	tags := TagsPrefix(l.Session)
	if l.Own {
		tags = tagsPrefix
	}
	return []string{before, tags, notesPrefix}
}

// LayoutOf returns the layout of a session on a session remote whose refs are there: at least OwnerRef if it exists.
func LayoutOf(m Meta, there map[string]object.ID) (Layout, error) {
	l := Layout{Session: m.Session, Branches: m.Branches}
	f, err := object.ParseFormat(m.Format)
	if err != nil {
		return l, fmt.Errorf("layout of session %s: %w", m.Session, err)
	}
	owner, err := OwnerBlob(f, m.Session)
	if err != nil {
		return l, err
	}
	l.Own = there[OwnerRef] == owner.ID
	return l, nil
}

// Mapped returns the branches, tags and notes of a session on a session remote by their names in the mount. A branch or tag
// that a version without layouts has sent under its own name, and that is as the session left it, counts if there is none
// under its name of today.
func (l Layout) Mapped(there map[string]object.ID) map[string]object.ID {
	refs := map[string]object.ID{}
	for name, id := range there {
		if ref, ok := l.Here(name); ok {
			refs[ref] = id
		}
	}
	for name, id := range there {
		old := strings.HasPrefix(name, headsPrefix) || strings.HasPrefix(name, tagsPrefix)
		if _, ok := refs[name]; old && !ok && there[CarriedRef(l.Session, name)] == id {
			refs[name] = id
		}
	}
	return refs
}

// Claimable reports whether a session may create OwnerRef on a session remote with these refs: nothing is there but what the
// session itself has sent. A version without layouts sent branches under their own names; what it sent to a repository that
// was empty shows by the history it had to bring first.
func Claimable(m Meta, there map[string]object.ID) bool {
	seeded := m.Base == ""
	for name := range there {
		seeded = seeded || strings.HasPrefix(name, basePrefix(m.Session))
	}
	for name := range there {
		switch {
		case name == "HEAD" || isOf(name, m.Session):
		case strings.HasPrefix(name, Prefix), !seeded, there[CarriedRef(m.Session, name)].IsZero():
			return false
		}
	}
	return true
}

// basePrefix is that of commits of the mounted remote that a session remote got to stand on.
func basePrefix(session string) string { return Prefix + "ground/" + session + "/" }

// isOf reports whether a ref below refs/afs/ is one of a session: refs/afs/KIND/SESSION or below it.
func isOf(name, session string) bool {
	rest, ok := strings.CutPrefix(name, Prefix)
	_, rest, kind := strings.Cut(rest, "/")
	first, _, _ := strings.Cut(rest, "/")
	return ok && kind && first == session
}
