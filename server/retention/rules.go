// Package retention closes, archives and deletes the sessions of a namespace by rules, and erases their transcripts.
// What it does to a session, when and why, can be listed before (Plan); a run (Run) does exactly what is due in this
// list. A session on hold, and one that is active, is never touched; deleted sessions are in the trash first.
package retention

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control/profile"
	"github.com/artifactfs/artifactfs/session"
)

const (
	version  = 1
	maxRules = 100
	day      = 24 * time.Hour
	maxAge   = 100 * 365 * day
)

// ErrRules means that a text is not the rules of a namespace.
var ErrRules = errors.New("invalid retention")

// Age is a duration that is written as "30d" or in the units of time.ParseDuration.
type Age time.Duration

// MarshalText implements encoding.TextMarshaler.
func (a Age) MarshalText() ([]byte, error) {
	if d := time.Duration(a); d%day != 0 {
		return []byte(d.String()), nil
	}
	return []byte(strconv.Itoa(int(time.Duration(a)/day)) + "d"), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *Age) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	if days, ok := strings.CutSuffix(string(text), "d"); ok {
		var n int
		n, err = strconv.Atoi(days)
		d = time.Duration(min(n, int(maxAge/day)+1)) * day
	}
	if err != nil || d < 0 || d > maxAge {
		return fmt.Errorf("invalid age %.40q: examples are 30d and 12h", text)
	}
	*a = Age(d)
	return nil
}

// Rules are the rules of a namespace.
type Rules struct {
	Version int    `json:"version"` // 1
	Rules   []Rule `json:"rules"`   // of several rules for the same action, the first that matches a session applies
	// Expired is the action for sessions whose lifetime has ended: Close, Archive or Delete; "": Close.
	Expired Action `json:"expired,omitempty"`
	// age after which deleted sessions are removed for good; nil: they stay in the trash
	Trash *Age `json:"trash_after,omitempty"`
}

// Rule is what happens to sessions after a time without a change. The members that select sessions are combined by
// "and".
type Rule struct {
	Repo        string              `json:"repo,omitempty"`    // glob of names of repositories; "": all
	Session     string              `json:"session,omitempty"` // glob of names of sessions; "": all
	Tags        []string            `json:"tags,omitempty"`    // tags that a session must have
	States      []session.LifeState `json:"states,omitempty"`  // states of the session; none: all except active
	Close       *Age                `json:"close_after,omitempty"`
	Archive     *Age                `json:"archive_after,omitempty"`
	Delete      *Age                `json:"delete_after,omitempty"`
	Transcripts *Age                `json:"transcripts_after,omitempty"` // age of records that are erased
}

// Action is what happens to a session.
type Action string

// Actions, and the place in which a session is deleted.
const (
	Close   Action = "close"
	Archive Action = "archive"
	Delete  Action = "delete" // move to the trash
	Erase   Action = "erase"  // erase old records of the transcript
	Purge   Action = "purge"  // remove a deleted session from the trash
	None    Action = "none"
)

// states are the states that a rule can name.
var states = []session.LifeState{session.Open, session.Paused, session.Closed, session.Archived}

// Parse parses and checks rules.
func Parse(text []byte) (r Rules, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, fmt.Errorf("%w: %w", ErrRules, err)
	}
	bad := func(format string, args ...any) (Rules, error) {
		return r, fmt.Errorf("%w: %w", ErrRules, fmt.Errorf(format, args...))
	}
	switch {
	case d.More():
		return bad("text after the rules")
	case r.Version != version:
		return bad("version is %d, want %d", r.Version, version)
	case len(r.Rules) > maxRules:
		return bad("%d rules, want at most %d", len(r.Rules), maxRules)
	case !slices.Contains([]Action{"", Close, Archive, Delete}, r.Expired):
		return bad("expired is %.40q, want close, archive or delete", r.Expired)
	}
	if r.Rules == nil {
		r.Rules = []Rule{}
	}
	for i, rule := range r.Rules {
		for _, glob := range []string{rule.Repo, rule.Session} {
			if _, err := path.Match(glob, ""); err != nil {
				return bad("rule %d: %.80q is not a glob", i+1, glob)
			}
		}
		for _, tag := range rule.Tags {
			if err := profile.ValidTag(tag); err != nil {
				return bad("rule %d: %w", i+1, err)
			}
		}
		for _, s := range rule.States {
			if !slices.Contains(states, s) {
				return bad("rule %d: unknown state %.40q, want open, paused, closed or archived", i+1, s)
			}
		}
		if rule.Close == nil && rule.Archive == nil && rule.Delete == nil && rule.Transcripts == nil {
			return bad("rule %d does nothing: it has none of close_after, archive_after, delete_after and transcripts_after",
				i+1)
		}
	}
	return r, nil
}

// facts are what rules look at.
type facts struct {
	repo, name string
	state      session.LifeState // Archived for sessions in the archive
	bundled    bool              // the session is in the archive
	changed    time.Time         // last change of the session, except changes by rules
	records    time.Time         // day of the oldest record of the transcript that is not erased; zero: none
	protected  bool              // the policy of the repository requires an approval for the deletion
	profile.Profile
}

// matches reports whether a rule applies to a session.
func (r Rule) matches(f facts) bool {
	match := func(glob, name string) bool {
		ok, _ := path.Match(glob, name)
		return glob == "" || ok
	}
	return match(r.Repo, f.repo) && match(r.Session, f.name) && f.Tagged(r.Tags...) &&
		(len(r.States) == 0 || slices.Contains(r.States, f.state))
}

// after returns the age in the first rule that matches a session and has one for an action, with the number of the
// rule.
func (r Rules) after(f facts, of func(Rule) *Age) (age time.Duration, number int, ok bool) {
	for i, rule := range r.Rules {
		if a := of(rule); a != nil && rule.matches(f) {
			return time.Duration(*a), i + 1, true
		}
	}
	return 0, 0, false
}

// Step is what rules do to a session, and when.
type Step struct {
	Repo    string    `json:"repo"`
	Session string    `json:"session"`
	State   string    `json:"state"` // state of the session; "deleted" if it is in the trash
	Title   string    `json:"title,omitempty"`
	Owner   string    `json:"owner,omitempty"`
	Action  Action    `json:"action"`       // None if no rule applies, or if something keeps the session as it is
	Due     time.Time `json:"due,omitzero"` // when the action is due; zero for None
	Why     string    `json:"why"`          // the rule, or the reason why nothing is done

	before time.Time // for Erase: records that were made before this time are erased
	at     string    // for Purge: prefix of the refs in the trash
}

// IsDue reports whether the step is to be made at the time now.
func (s Step) IsDue(now time.Time) bool { return s.Action != None && !now.Before(s.Due) }

// steps returns what the rules do to a session: one step that ends it, or None, and perhaps one that erases records.
func (r Rules) steps(f facts, now time.Time) []Step {
	base := Step{Repo: f.repo, Session: f.name, State: string(f.state), Title: f.Title, Owner: f.Owner, Action: None}
	switch {
	case f.Held():
		base.Why = "on hold: " + f.Hold.Reason
		return []Step{base}
	case f.state == session.Active:
		base.Why = "active"
		return []Step{base}
	}
	var all []Step
	add := func(a Action, due time.Time, why string) {
		s := base
		s.Action, s.Due, s.Why = a, due.UTC(), why
		all = append(all, s)
	}
	finished := f.state == session.Closed || f.state == session.Archived
	for _, c := range []struct {
		action Action
		name   string
		of     func(Rule) *Age
		not    bool
	}{
		{Delete, "delete_after", func(r Rule) *Age { return r.Delete }, false},
		{Archive, "archive_after", func(r Rule) *Age { return r.Archive }, f.bundled},
		{Close, "close_after", func(r Rule) *Age { return r.Close }, finished},
	} {
		age, number, ok := r.after(f, c.of)
		expired := !f.Expires.IsZero() && c.action == r.Expired || c.action == Close && r.Expired == "" && !f.Expires.IsZero()
		switch {
		case c.not:
		case expired && (!ok || f.Expires.Before(f.changed.Add(age))):
			add(c.action, f.Expires, "the lifetime of the session ends")
		case ok:
			text, _ := Age(age).MarshalText()
			add(c.action, f.changed.Add(age), fmt.Sprintf("rule %d: %s %s", number, c.name, text))
		}
	}
	if f.protected {
		all = slices.DeleteFunc(all, func(s Step) bool { return s.Action == Delete })
		base.Why = "the policy of the repository protects the session from deletion"
	}
	end := base
	if base.Why == "" {
		end.Why = "no rule"
	}
	// Of the actions that are due, the first one is the strongest; otherwise the next one is shown.
	if i := slices.IndexFunc(all, func(s Step) bool { return s.IsDue(now) }); i >= 0 {
		end = all[i]
	} else if len(all) > 0 {
		end = slices.MinFunc(all, func(a, b Step) int { return a.Due.Compare(b.Due) })
	}
	if end.Action == Delete && end.IsDue(now) {
		return []Step{end}
	}
	steps := []Step{end}
	if age, number, ok := r.after(f, func(r Rule) *Age { return r.Transcripts }); ok && !f.records.IsZero() {
		text, _ := Age(age).MarshalText()
		s := base
		// Whole days are erased, so that each session is rewritten once a day at most.
		s.Action, s.Due, s.Why = Erase, f.records.Add(day+age).UTC(),
			fmt.Sprintf("rule %d: transcripts_after %s", number, text)
		s.before = now.Add(-age).UTC().Truncate(day)
		steps = append(steps, s)
	}
	return steps
}
