package session

import (
	"fmt"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/refname"
)

// OwnerRef is the ref on a session remote that points to a blob with the name of one session, the owner of the plain names (branch and
// tag names without a prefix). The owner pushes its branches and tags under the same names as in its mount. All other sessions push
// their branches and tags under names with a prefix. OwnerRef is created once, by compare-and-swap, on a session remote that was empty.
// A repository that already has branches of users gets no OwnerRef, so every session uses names with a prefix there.
const OwnerRef = Prefix + "owner"

const (
	// BranchesAsIs, as Layout.Branches, keeps the names of branches unchanged on any session remote.
	BranchesAsIs = "as-is"
	// DefaultBranches is the pattern of branch names if another session, or no session, owns the plain names of the session
	// remote (see OwnerRef).
	DefaultBranches = "afs/{session}/{branch}"

	sessionField = "{session}"
	branchField  = "{branch}"

	headsPrefix = "refs/heads/"
	tagsPrefix  = "refs/tags/"
	notesPrefix = "refs/notes/"
)

// Layout maps the names of branches, tags and notes in a mount to their names on the session remote, and back. All
// other refs of a session have the same name in both repositories.
type Layout struct {
	Session  string // name of the session
	Branches string // BranchesAsIs, or a pattern with {branch}; if "": names are unchanged if Own is set, else DefaultBranches applies
	Own      bool   // the session owns the plain names on the session remote; see OwnerRef
}

// OwnerBlob returns the blob that OwnerRef points to if session is the owner of the plain names.
func OwnerBlob(f object.Format, session string) (odb.Outgoing, error) {
	return Outgoing(f, object.Blob, []byte(session+"\n"))
}

// TagsPrefix returns the prefix of a session's tags on a session remote whose plain names the session does not own. The prefix is
// outside of refs/tags/, because new tags in refs/tags/ often start release pipelines.
func TagsPrefix(session string) string { return Prefix + "tags/" + session + "/" }

// ValidBranches returns an error unless pattern is valid for Layout.Branches.
func ValidBranches(pattern string) error {
	switch {
	case pattern == "" || pattern == BranchesAsIs:
		return nil
	case strings.Count(pattern, branchField) != 1:
		return fmt.Errorf("pattern %.100q must contain {branch} exactly once; an example is %s", pattern, DefaultBranches)
	case strings.Count(pattern, sessionField) > 1:
		return fmt.Errorf("pattern %.100q contains {session} more than once", pattern)
	}
	name := headsPrefix + strings.NewReplacer(sessionField, "s", branchField, "b").Replace(pattern)
	if !refname.Valid(name) || strings.ContainsAny(name, "{}") || strings.HasPrefix(pattern, "-") || strings.HasPrefix(pattern, "refs/") {
		return fmt.Errorf("pattern %.100q does not produce valid branch names; an example is %s", pattern, DefaultBranches)
	}
	return nil
}

// asIs reports whether branches have the same names on the session remote as in the mount.
func (l Layout) asIs() bool { return l.Branches == BranchesAsIs || l.Branches == "" && l.Own }

// Pattern returns the pattern of branch names on the session remote, such as "{branch}" or "afs/fix/{branch}": {session}
// is replaced by the name of the session, and {branch} remains.
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

// There maps the name of a ref in the mount to the ref's name on the session remote.
func (l Layout) There(ref string) string {
	if branch, ok := strings.CutPrefix(ref, headsPrefix); ok {
		return headsPrefix + strings.Replace(l.Pattern(), branchField, branch, 1)
	}
	if tag, ok := strings.CutPrefix(ref, tagsPrefix); ok && !l.Own {
		return TagsPrefix(l.Session) + tag
	}
	return ref
}

// Here maps the name of a branch, tag or notes ref on the session remote (the parameter there) to the ref's name in the mount. If
// the ref does not belong to this session, ok is false and the other result must not be used.
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

// UsersPrefixes are the prefixes of the refs that a session copies from a mount: its branches, tags and notes refs.
var UsersPrefixes = []string{headsPrefix, tagsPrefix, notesPrefix}

// IsUsers reports whether name is a branch, tag or notes ref.
func IsUsers(name string) bool {
	return slices.ContainsFunc(UsersPrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// Exclusive reports whether this session is the only writer of a ref of the session remote, whose name is the parameter there. If
// other sessions also write the ref, a push may only move the ref to a commit that contains the old value.
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

// Prefixes returns the prefixes of those names on the session remote that the method Here can map: names of branches, tags and notes.
func (l Layout) Prefixes() []string {
	before, _, _ := strings.Cut(headsPrefix+l.Pattern(), branchField)
	tags := TagsPrefix(l.Session)
	if l.Own {
		tags = tagsPrefix
	}
	return []string{before, tags, notesPrefix}
}

// LayoutOf returns the layout of a session on a session remote. The map there holds the values of the remote's refs by name; if
// OwnerRef exists on the remote, the map must contain it.
func LayoutOf(m Meta, there map[string]object.ID) (Layout, error) {
	l := Layout{Session: m.Session, Branches: m.Branches}
	f, err := object.ParseFormat(m.Format)
	if err != nil {
		return l, fmt.Errorf("read layout of session %s: %w", m.Session, err)
	}
	owner, err := OwnerBlob(f, m.Session)
	if err != nil {
		return l, err
	}
	l.Own = there[OwnerRef] == owner.ID
	return l, nil
}

// Mapped returns the values of the session's branches, tags and notes on the session remote by their names in the mount.
// The map there holds the values of the remote's refs by name.
func (l Layout) Mapped(there map[string]object.ID) map[string]object.ID {
	refs := map[string]object.ID{}
	for name, id := range there {
		if ref, ok := l.Here(name); ok {
			refs[ref] = id
		}
	}
	return refs
}

// NeedsNoSession reports whether a ref of a session remote may have been created without a session: the policy, approvals, cache
// entries, locks and read profiles. A session remote that has only such refs counts as empty.
func NeedsNoSession(name string) bool {
	rest, ok := strings.CutPrefix(name, Prefix)
	kind, _, _ := strings.Cut(rest, "/")
	switch kind {
	case "policy", "approvals", "cache", "locks", "profile":
		return ok
	}
	return false
}

// Claimable reports whether a session may create OwnerRef on a session remote, because the session itself has pushed all refs of
// that remote except those that need no session. The map there holds the values of these refs by name.
func Claimable(session string, there map[string]object.ID) bool {
	for name := range there {
		if name != "HEAD" && !isOf(name, session) && !NeedsNoSession(name) {
			return false
		}
	}
	return true
}

// isOf reports whether a ref below Prefix belongs to a session: its name is refs/afs/KIND/SESSION, or a name below that. Read profiles
// belong to no session, not even to one that has the name of a profile.
func isOf(name, session string) bool {
	if strings.HasPrefix(name, ProfilePrefix) {
		return false
	}
	rest, ok := strings.CutPrefix(name, Prefix)
	_, rest, kind := strings.Cut(rest, "/")
	first, _, _ := strings.Cut(rest, "/")
	return ok && kind && first == session
}
