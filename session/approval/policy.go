package approval

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/session"
)

const (
	// PolicyRef is the name of the ref with the policy of a repository.
	PolicyRef = session.Prefix + "policy"
	// PolicyFile is the name of the file with the policy, in the tree of PolicyRef's commit.
	PolicyFile = "policy.json"
	// DefaultTTL is the maximum lifetime of a request if the policy has no other one.
	DefaultTTL = 7 * 24 * time.Hour

	maxPolicy = 1 << 20 // maximum size of the policy in bytes
	maxRules  = 1000
)

// ErrPolicy means that the policy is not valid. Until it is repaired, no user can change the branches and sessions that
// it may protect.
var ErrPolicy = errors.New("invalid policy")

// Policy states which changes of a repository need approvals.
type Policy struct {
	Version int `json:"version"`
	// Branches are the rules for branches. A change must satisfy every rule that matches its branch and one of its paths.
	Branches []BranchRule `json:"branches,omitempty"`
	// Sessions are the rules for the deletion of sessions.
	Sessions []SessionRule `json:"sessions,omitempty"`
	// Locks states what mounts do if a program changes a path that another session has locked: "refuse" (the default, also
	// if it is ""), "warn" or "ignore".
	Locks string `json:"locks,omitempty"`
}

// Need states how many approvals a rule requires, and of which users.
type Need struct {
	Quorum    int      `json:"quorum"`              // number of different users who must grant, at least 1
	Reviewers []string `json:"reviewers,omitempty"` // users who may grant; empty: all
	Self      bool     `json:"self,omitempty"`      // the user who made the request may grant it too
	TTL       TTL      `json:"ttl,omitempty"`       // maximum lifetime of a request; 0: DefaultTTL
}

// BranchRule protects branches.
type BranchRule struct {
	Match string   `json:"match"`           // glob of branches without refs/heads/, such as release/*
	Paths []string `json:"paths,omitempty"` // globs; the rule is for changes of matching paths; empty: all changes
	Need
}

// SessionRule protects sessions from deletion.
type SessionRule struct {
	Match string `json:"match"` // glob of names of sessions
	Need
}

// TTL is a duration that is written as text, such as 24h.
type TTL time.Duration

// MarshalText implements encoding.TextMarshaler.
func (t TTL) MarshalText() ([]byte, error) { return []byte(time.Duration(t).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *TTL) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	*t = TTL(d)
	return err
}

// ParsePolicy parses the contents of a policy file. An empty text is a policy without rules. It returns errors that
// wrap ErrPolicy.
func ParsePolicy(text []byte) (Policy, error) {
	p := Policy{Version: version}
	if len(bytes.TrimSpace(text)) == 0 {
		return p, nil
	}
	if len(text) > maxPolicy {
		return p, fmt.Errorf("%w: larger than %d bytes", ErrPolicy, maxPolicy)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil {
		return p, fmt.Errorf("%w: %w", ErrPolicy, err)
	}
	if err := p.check(); err != nil {
		return p, fmt.Errorf("%w: %w", ErrPolicy, err)
	}
	return p, nil
}

func (p Policy) check() error {
	if p.Version != version {
		return fmt.Errorf("version %d is not known", p.Version)
	}
	if len(p.Branches)+len(p.Sessions) > maxRules {
		return fmt.Errorf("more than %d rules", maxRules)
	}
	if !slices.Contains([]string{"", "refuse", "warn", "ignore"}, p.Locks) {
		return fmt.Errorf("locks is %.40q, want refuse, warn or ignore", p.Locks)
	}
	for i, r := range p.Branches {
		if err := r.Need.check(append([]string{r.Match}, r.Paths...)); err != nil {
			return fmt.Errorf("rule %d of branches: %w", i+1, err)
		}
	}
	for i, r := range p.Sessions {
		if err := r.Need.check([]string{r.Match}); err != nil {
			return fmt.Errorf("rule %d of sessions: %w", i+1, err)
		}
	}
	return nil
}

// check returns an error if the globs or the other fields of a rule are invalid.
func (n Need) check(globs []string) error {
	for _, g := range globs {
		if err := refname.CheckGlob(g); err != nil {
			return err
		}
	}
	for _, name := range n.Reviewers {
		if !validName(name) {
			return fmt.Errorf("invalid reviewer %.100q", name)
		}
	}
	switch {
	case n.Quorum < 1:
		return fmt.Errorf("quorum is %d, want at least 1", n.Quorum)
	case len(n.Reviewers) > 0 && n.Quorum > len(n.Reviewers):
		return fmt.Errorf("quorum is %d, but there are %d reviewers", n.Quorum, len(n.Reviewers))
	case n.TTL < 0:
		return fmt.Errorf("ttl is %s, want more than 0", time.Duration(n.TTL))
	}
	return nil
}

// Protects reports whether the policy has a rule that matches a branch. The parameter branch is the full name, such as
// refs/heads/main.
func (p Policy) Protects(branch string) bool {
	return slices.ContainsFunc(p.Branches, func(r BranchRule) bool { return r.matches(branch) })
}

// ProtectsSession reports whether a rule matches a session.
func (p Policy) ProtectsSession(name string) bool {
	return slices.ContainsFunc(p.Sessions, func(r SessionRule) bool { return refname.Match(r.Match, name) })
}

func (r BranchRule) matches(branch string) bool {
	name, ok := strings.CutPrefix(branch, "refs/heads/")
	return ok && refname.Match(r.Match, name)
}

// NeedsPaths reports whether a rule that matches the branch applies only to changes of certain paths. The parameter
// branch is the full name, such as refs/heads/main.
func (p Policy) NeedsPaths(branch string) bool {
	return slices.ContainsFunc(p.Branches, func(r BranchRule) bool { return len(r.Paths) > 0 && r.matches(branch) })
}

// needs returns the requirements of all rules that match a change.
func (p Policy) needs(c Change) (all []Need) {
	if c.Session != "" {
		for _, r := range p.Sessions {
			if refname.Match(r.Match, c.Session) {
				all = append(all, r.Need)
			}
		}
		return all
	}
	touched := changedPaths{left: maxMatches}
	if p.NeedsPaths(c.Branch) {
		touched.sorted = slices.Sorted(slices.Values(c.Paths))
	}
	for _, r := range p.Branches {
		if r.matches(c.Branch) && (len(r.Paths) == 0 || slices.ContainsFunc(r.Paths, touched.match)) {
			all = append(all, r.Need)
		}
	}
	return all
}

// maxMatches is the maximum number of comparisons of a path with a glob that are made to find the rules for one change.
// The limit keeps a policy from making a server busy for more than about a second. When it is reached, every rule for
// paths applies.
const maxMatches = 5_000_000

// changedPaths are the paths that a change touches.
type changedPaths struct {
	sorted []string
	left   int // number of comparisons that may still be made, see maxMatches
}

// match reports whether a glob of a rule matches one of the paths. It compares only the paths that begin with the
// glob's part before the first special character.
func (t *changedPaths) match(glob string) bool {
	glob = strings.TrimPrefix(glob, "/")
	prefix := glob
	if i := strings.IndexAny(glob, `*?[\`); i >= 0 {
		prefix = glob[:i]
	}
	first, _ := slices.BinarySearch(t.sorted, prefix)
	for _, path := range t.sorted[first:] {
		if !strings.HasPrefix(path, prefix) {
			return false
		}
		if t.left--; t.left < 0 || refname.Match(glob, path) {
			return true
		}
	}
	return false
}
