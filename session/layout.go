package session

import (
	"fmt"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/refname"
)

// OwnerRef is a ref on a session remote that points to a blob with the name of one session: the owner of the plain
// names, which are branch and tag names without a prefix. The owner pushes its branches and tags under the names that
// they have in its mount. All other sessions push their branches and tags under names with a prefix. OwnerRef is
// created once, by compare-and-swap, on an empty session remote. A repository that already has branches of users gets
// no OwnerRef, so every session uses names with a prefix there.
const OwnerRef = Prefix + "owner"

const (
	// BranchesAsIs is a value of Layout.Branches. It means that branches have the same names on the session remote as
	// in the mount.
	BranchesAsIs = "as-is"
	// DefaultBranches is the pattern of branch names if another session, or no session, owns the plain names of the
	// session remote (see OwnerRef).
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
	Branches string // BranchesAsIs or a pattern with {branch}; "": BranchesAsIs if Own is set, else DefaultBranches
	Own      bool   // the session owns the plain names on the session remote; see OwnerRef
}

// OwnerBlob returns the blob to which OwnerRef points if session owns the plain names.
func OwnerBlob(f object.Format, session string) (odb.Outgoing, error) {
	return Outgoing(f, object.Blob, []byte(session+"\n"))
}

// TagsPrefix returns the prefix of a session's tags on a session remote whose plain names the session does not own. The
// prefix is outside of refs/tags/, because new tags in refs/tags/ often start release pipelines.
func TagsPrefix(session string) string { return Prefix + "tags/" + session + "/" }

// ValidBranches returns an error if pattern is not a valid value of Layout.Branches.
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
	if !refname.Valid(name) || strings.ContainsAny(name, "{}") || strings.HasPrefix(pattern, "-") ||
		strings.HasPrefix(pattern, "refs/") {
		return fmt.Errorf("pattern %.100q does not produce valid branch names; an example is %s", pattern, DefaultBranches)
	}
	return nil
}

// asIs reports whether branches have the same names on the session remote as in the mount.
func (l Layout) asIs() bool { return l.Branches == BranchesAsIs || l.Branches == "" && l.Own }

// Pattern returns the pattern of branch names on the session remote, such as "{branch}" or "afs/fix/{branch}":
// {session} is replaced by the name of the session, and {branch} remains.
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

// Here returns the name in the mount of a ref of the session remote; it is the reverse of There. The parameter there is
// the name of a branch, tag or notes ref on the session remote. If the ref does not belong to this session, ok is false
// and ref has no meaning.
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

// UsersPrefixes lists the prefixes of the refs of the user that a session copies from the mount to the session remote:
// branches, tags and notes refs.
var UsersPrefixes = []string{headsPrefix, tagsPrefix, notesPrefix}

// IsUsers reports whether name is the name of a branch, tag or notes ref.
func IsUsers(name string) bool {
	return slices.ContainsFunc(UsersPrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// Exclusive reports whether this session is the only writer of the ref there of the session remote. If other sessions
// also write the ref, a push may set it only to a commit that contains the old value.
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

// Prefixes returns the prefixes of the refs on the session remote that may be branches, tags and notes of this session;
// see Here.
func (l Layout) Prefixes() []string {
	before, _, _ := strings.Cut(headsPrefix+l.Pattern(), branchField)
	tags := TagsPrefix(l.Session)
	if l.Own {
		tags = tagsPrefix
	}
	return []string{before, tags, notesPrefix}
}

// LayoutOf returns the layout of a session on a session remote. The map there contains the ids of refs of the session
// remote by name, at least OwnerRef if that ref exists.
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

// Mapped returns the ids of the session's branches, tags and notes refs by their names in the mount. The map there
// contains the ids of the refs of the session remote by their names there.
func (l Layout) Mapped(there map[string]object.ID) map[string]object.ID {
	refs := map[string]object.ID{}
	for name, id := range there {
		if ref, ok := l.Here(name); ok {
			refs[ref] = id
		}
	}
	return refs
}

// NeedsNoSession reports whether the ref name of a session remote may exist although no session was ever pushed there:
// the policy, approvals, cache entries, locks and read profiles. A session remote that has only such refs counts as
// empty.
func NeedsNoSession(name string) bool {
	rest, ok := strings.CutPrefix(name, Prefix)
	kind, _, _ := strings.Cut(rest, "/")
	switch kind {
	case "policy", "approvals", "cache", "locks", "profile":
		return ok
	}
	return false
}

// Claimable reports whether a session may create OwnerRef on a session remote: all refs there, except those of
// NeedsNoSession, belong to this session. The map there contains the ids of the refs by name.
func Claimable(session string, there map[string]object.ID) bool {
	for name := range there {
		if name != "HEAD" && !isOf(name, session) && !NeedsNoSession(name) {
			return false
		}
	}
	return true
}

// isOf reports whether the ref name belongs to a session: its name is refs/afs/KIND/SESSION, or begins with that and a
// slash. Read profiles belong to no session, even if a profile and a session have the same name.
func isOf(name, session string) bool {
	if strings.HasPrefix(name, ProfilePrefix) {
		return false
	}
	rest, ok := strings.CutPrefix(name, Prefix)
	_, rest, kind := strings.Cut(rest, "/")
	first, _, _ := strings.Cut(rest, "/")
	return ok && kind && first == session
}
