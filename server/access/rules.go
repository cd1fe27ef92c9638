package access

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/locks"
)

// ownerOnly in a rule means that the rule applies only while the repository belongs to the token's session
// (session.OwnerRef), and only for names that are not reserved for other sessions. The session may claim a repository
// whose only branches and tags are those that sessions push to repositories of others.
const ownerOnly records.Denial = "owner-only"

// denials are the values of records.Denial.
var denials = []records.Denial{records.NoPush, records.NoForcePush, records.AppendOnly, records.NoDelete, ownerOnly}

// sessionHeads is the prefix of the branches that sessions push to repositories that do not belong to them.
const sessionHeads = "refs/heads/afs/"

// entriesName is the last component of session.EntryPrefix.
const entriesName = "entries"

// Refused is the reason, as a text for the user of git, why the rules of a token do not allow an update.
type Refused string

func (r Refused) Error() string { return string(r) }

// State describes the repository of an update. Its functions are called only if a rule needs their results.
type State struct {
	// Forced reports whether the update is not a fast-forward. Creations and removals are never passed to it.
	Forced func() (bool, error)
	// Owner returns the owner of the repository before the update.
	Owner func() (Owner, error)
	// Format is the object format of the repository.
	Format string
	// Together are the updates of the same atomic push.
	Together []records.RefUpdate
}

// Allow returns nil if the rules of a token allow an update, and an error of type Refused if they do not. Several rules
// may match the name of a ref: the update must not be denied by any of them. Other errors are those of State.
func Allow(t records.Token, u records.RefUpdate, s State) error {
	if len(t.Rules) == 0 {
		return nil
	}
	matched := false
	var denied []records.Denial
	for _, rule := range t.Rules {
		if !refname.Match(rule.Glob, u.Name) {
			continue
		}
		if slices.Contains(rule.Deny, ownerOnly) {
			if owned, err := owns(t.Session, u, s); err != nil {
				return err
			} else if !owned {
				continue
			}
		}
		matched = true
		denied = append(denied, rule.Deny...)
	}
	denies := func(d ...records.Denial) bool {
		return slices.ContainsFunc(d, func(d records.Denial) bool { return slices.Contains(denied, d) })
	}
	switch {
	case !matched, denies(records.NoPush):
		return Refused("token does not allow pushes to this ref")
	case u.Removes():
		if denies(records.NoDelete, records.AppendOnly) {
			return Refused("token does not allow the removal of this ref")
		}
	case !u.Creates() && denies(records.NoForcePush, records.AppendOnly):
		forced, err := s.Forced()
		if err != nil {
			return fmt.Errorf("check update of %s: %w", u.Name, err)
		}
		if forced {
			return Refused("token does not allow pushes to this ref that are not fast-forwards")
		}
	}
	return nil
}

// owns reports whether the repository belongs to a session, or is claimed for the session by this update or another
// update of the same atomic push.
func owns(name string, u records.RefUpdate, s State) (bool, error) {
	if name == "" || strings.HasPrefix(u.Name, sessionHeads) {
		return false, nil
	}
	f, err := object.ParseFormat(s.Format)
	if err != nil {
		return false, fmt.Errorf("find owner of repository: %w", err)
	}
	owner, err := session.OwnerBlob(f, name)
	if err != nil {
		return false, fmt.Errorf("find owner of repository: %w", err)
	}
	before, err := s.Owner()
	if err != nil {
		return false, fmt.Errorf("find owner of repository: %w", err)
	}
	if before.ID != "" {
		return before.ID == owner.ID.String(), nil
	}
	claims := func(u records.RefUpdate) bool { return u.Name == session.OwnerRef && u.New == owner.ID.String() }
	return (claims(u) || slices.ContainsFunc(s.Together, claims)) && !before.Others, nil
}

// Owner states to which session a repository belongs.
type Owner struct {
	ID     string // id of the blob that session.OwnerRef names; "": the repository belongs to no session
	Others bool   // if ID is "": the repository has branches or tags that no session may push to a repository of others
}

// othersRefs are the names that only the owner of a repository may use.
var othersRefs = []records.Names{
	{From: "refs/heads/", To: sessionHeads}, {From: records.Below(sessionHeads).To, To: records.Below("refs/heads/").To},
	records.Below("refs/tags/"),
}

// OwnerOf returns the owner of a repository. Its time does not grow with the number of refs of the repository.
func OwnerOf(ctx context.Context, repos *records.Repos, id string) (o Owner, err error) {
	if o.ID, err = repos.Ref(ctx, id, session.OwnerRef); err == nil && o.ID == "" {
		o.Others, err = repos.HasRefs(ctx, id, othersRefs...)
	}
	return o, err
}

// OwnerIn returns the owner of a repository with these refs: ids by name.
func OwnerIn(refs map[string]string) Owner {
	o := Owner{ID: refs[session.OwnerRef]}
	for name := range refs {
		o.Others = o.Others || o.ID == "" && slices.ContainsFunc(othersRefs,
			func(n records.Names) bool { return name >= n.From && name < n.To })
	}
	return o
}

// SessionRules returns the rules of a token for one session. They allow the refs that a session pushes
// (session.Layout): its own refs, notes without rewinding them, and, if the repository belongs to the session, branches
// and tags with plain names. They also allow cache entries (package cacheentry), locks (package locks) and read
// profiles, which all sessions share. The glob of cache entries has two components, and that of notes one, so that a
// session cannot create a ref that is in the way of others.
func SessionRules(name string) ([]records.RefRule, error) {
	if err := session.ValidName(name); err != nil {
		return nil, err
	}
	// The refs of such a session would include session.EntryPrefix.
	if name == entriesName {
		return nil, fmt.Errorf("session name %s is reserved", name)
	}
	return []records.RefRule{
		{Glob: session.Prefix + "*/" + name},
		{Glob: session.Prefix + "*/" + name + "/**"},
		{Glob: sessionHeads + name + "/**"},
		{Glob: session.EntryPrefix + "*/*"},
		{Glob: session.ProfilePrefix + "*"},
		{Glob: locks.Ref, Deny: []records.Denial{records.AppendOnly}},
		{Glob: "refs/notes/*", Deny: []records.Denial{records.AppendOnly}},
		{Glob: "refs/notes/**", Deny: []records.Denial{ownerOnly, records.AppendOnly}},
		{Glob: session.OwnerRef, Deny: []records.Denial{ownerOnly, records.NoForcePush}},
		{Glob: "refs/heads/**", Deny: []records.Denial{ownerOnly}},
		{Glob: "refs/tags/**", Deny: []records.Denial{ownerOnly}},
	}, nil
}

// CheckRules returns an error unless the globs and denials of rules are valid.
func CheckRules(rules []records.RefRule) error {
	for _, r := range rules {
		if err := refname.CheckGlob(r.Glob); err != nil {
			return err
		}
		for _, d := range r.Deny {
			if !slices.Contains(denials, d) {
				return fmt.Errorf("unknown denial %.40q for refs %.100q", d, r.Glob)
			}
		}
	}
	return nil
}
