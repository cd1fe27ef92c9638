// Package profile describes what a session is for: title, task, owner, tags, the time at which it expires, and a hold,
// which keeps it from being deleted. A profile is part of the metadata of the session (session.Meta).
package profile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits of the fields, in bytes, and of the number of tags.
const (
	maxTitle = 200
	maxTask  = 16 << 10
	maxTag   = 64
	maxTags  = 32
	// maxTTL is the longest time after which a session can expire.
	maxTTL = 100 * 365 * 24 * time.Hour
)

// Profile describes what a session is for. The zero value describes nothing.
type Profile struct {
	Title string   `json:"title,omitempty"` // one line
	Task  string   `json:"task,omitempty"`  // what the session is to achieve, as text of any length or as a URL
	Owner string   `json:"owner,omitempty"` // user who is responsible for the session
	Tags  []string `json:"tags,omitempty"`  // sorted
	// time after which the retention of the server closes the session; zero: never
	Expires time.Time `json:"expires,omitzero"`
	Hold    *Hold     `json:"hold,omitempty"`  // hold that was placed last
	Edited  time.Time `json:"edited,omitzero"` // time of the last change of the fields above, except Hold
}

// Hold keeps a session from being deleted, archived and shortened until a user releases the hold. A released hold stays
// in the profile, so that two versions of a profile can be merged.
type Hold struct {
	Reason     string    `json:"reason"`                // reason for people
	By         string    `json:"by"`                    // user who placed the hold
	Since      time.Time `json:"since"`                 // time at which it was placed
	Released   time.Time `json:"released,omitzero"`     // time of the release; zero: the hold applies
	ReleasedBy string    `json:"released_by,omitempty"` // user who released the hold
}

// OnHoldError reports that a session must not be changed in this way because of a hold.
type OnHoldError struct {
	Session string // name of the session
	Hold    Hold   // the hold
}

// Error returns a text with the name of the session, the user who has placed the hold, and the reason.
func (e *OnHoldError) Error() string {
	return fmt.Sprintf("session %s is on hold since %s by %s: %s", e.Session, e.Hold.Since.UTC().Format(time.DateOnly),
		e.Hold.By, e.Hold.Reason)
}

// Held reports whether a hold applies.
func (p Profile) Held() bool { return p.Hold != nil && p.Hold.Released.IsZero() }

// OnHold returns an error of the type *OnHoldError if a hold applies. session is the name of the session.
func (p Profile) OnHold(session string) error {
	if !p.Held() {
		return nil
	}
	return &OnHoldError{Session: session, Hold: *p.Hold}
}

// Expired reports whether the session has expired at the time now.
func (p Profile) Expired(now time.Time) bool { return !p.Expires.IsZero() && !now.Before(p.Expires) }

// Tagged reports whether the profile has all of the tags.
func (p Profile) Tagged(tags ...string) bool {
	return !slices.ContainsFunc(tags, func(t string) bool { return !slices.Contains(p.Tags, t) })
}

// Change is a change of a profile. Fields that are nil or empty change nothing.
type Change struct {
	Title   *string        `json:"title,omitempty"`    // new title; "": none
	Task    *string        `json:"task,omitempty"`     // new task; "": none
	Owner   *string        `json:"owner,omitempty"`    // new owner; "": none
	AddTags []string       `json:"add_tags,omitempty"` // tags to add
	DelTags []string       `json:"del_tags,omitempty"` // tags to remove
	TTL     *time.Duration `json:"ttl_ns,omitempty"`   // time until the session expires; 0: it never expires
	Hold    *string        `json:"hold,omitempty"`     // reason of a hold to place; "": the hold is released
}

// Restricted reports whether programs inside of a mount must not make the change: it concerns the owner, the lifetime
// or the hold.
func (c Change) Restricted() bool { return c.Owner != nil || c.TTL != nil || c.Hold != nil }

// Validate returns an error if a field of the change is not valid.
func (c Change) Validate() error {
	lines := []struct {
		name string
		text *string
		most int
	}{{"title", c.Title, maxTitle}, {"owner", c.Owner, maxTitle}, {"reason of the hold", c.Hold, maxTitle}}
	for _, l := range lines {
		if err := validLine(l.name, l.text, l.most); err != nil {
			return err
		}
	}
	if c.Task != nil && (len(*c.Task) > maxTask || !utf8.ValidString(*c.Task)) {
		return fmt.Errorf("task has %d bytes, must be UTF-8 of at most %d bytes", len(*c.Task), maxTask)
	}
	if c.TTL != nil && (*c.TTL < 0 || *c.TTL > maxTTL) {
		return fmt.Errorf("lifetime %s is negative or longer than 100 years", *c.TTL)
	}
	for _, t := range slices.Concat(c.AddTags, c.DelTags) {
		if err := ValidTag(t); err != nil {
			return err
		}
	}
	return nil
}

// validLine returns an error if text, unless it is nil, is longer than most bytes or has characters that a table cannot
// show. name is the name of the field in the error.
func validLine(name string, text *string, most int) error {
	if text == nil {
		return nil
	}
	if len(*text) > most || !utf8.ValidString(*text) {
		return fmt.Errorf("%s has %d bytes, must be UTF-8 of at most %d bytes", name, len(*text), most)
	}
	if strings.ContainsFunc(*text, func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) }) {
		return fmt.Errorf("%s contains a line break or a control character", name)
	}
	return nil
}

// ValidTag returns an error unless text can be a tag: it consists of letters, digits and the characters ._:/=- and
// begins with a letter or digit.
func ValidTag(text string) error {
	plain := func(r rune) bool {
		return unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("._:/=-", r)
	}
	first, _ := utf8.DecodeRuneInString(text)
	if text == "" || len(text) > maxTag || strings.ContainsFunc(text, func(r rune) bool { return !plain(r) }) ||
		!unicode.IsLetter(first) && !unicode.IsDigit(first) {
		return fmt.Errorf("invalid tag %.80q: must have at most %d letters, digits, dots, dashes, colons, slashes and equals signs", text, maxTag)
	}
	return nil
}

// Apply makes a change, which must be valid. actor is the user who makes the change.
func (p *Profile) Apply(c Change, actor string, now time.Time) error {
	before := *p
	set(&p.Title, c.Title)
	set(&p.Task, c.Task)
	set(&p.Owner, c.Owner)
	tags := slices.DeleteFunc(slices.Concat(p.Tags, c.AddTags),
		func(t string) bool { return slices.Contains(c.DelTags, t) })
	slices.Sort(tags)
	if tags = slices.Compact(tags); len(tags) > maxTags {
		return fmt.Errorf("session would have %d tags, must have at most %d", len(tags), maxTags)
	}
	if p.Tags = tags; len(tags) == 0 {
		p.Tags = nil
	}
	if c.TTL != nil {
		p.Expires = time.Time{}
		if *c.TTL > 0 {
			p.Expires = now.Add(*c.TTL).UTC().Truncate(time.Second)
		}
	}
	if p.Title != before.Title || p.Task != before.Task || p.Owner != before.Owner || !slices.Equal(p.Tags, before.Tags) ||
		!p.Expires.Equal(before.Expires) {
		p.Edited = now.UTC()
	}
	p.hold(c.Hold, actor, now)
	return nil
}

func set(field, to *string) {
	if to != nil {
		*field = *to
	}
}

// hold places a hold or, if the reason is "", releases the hold that applies. It does nothing if reason is nil.
func (p *Profile) hold(reason *string, actor string, now time.Time) {
	switch {
	case reason == nil || *reason == "" && !p.Held() || p.Held() && p.Hold.Reason == *reason:
	case *reason == "":
		h := *p.Hold // change a copy, because several versions of a profile may share the value
		h.Released, h.ReleasedBy = now.UTC(), actor
		p.Hold = &h
	default:
		p.Hold = &Hold{Reason: *reason, By: actor, Since: now.UTC()}
	}
}

// Merge returns the profile of a session whose metadata was changed on two hosts: the fields that were edited last, and
// the hold that was placed or released last.
func Merge(a, b Profile) Profile {
	merged := a
	if b.Edited.After(a.Edited) {
		merged = b
	}
	merged.Hold = a.Hold
	if b.Hold != nil && (a.Hold == nil || b.Hold.changed().After(a.Hold.changed())) {
		merged.Hold = b.Hold
	}
	return merged
}

// changed returns the time at which the hold was placed or released.
func (h Hold) changed() time.Time {
	return slices.MaxFunc([]time.Time{h.Since, h.Released},
		func(x, y time.Time) int { return cmp.Compare(x.UnixNano(), y.UnixNano()) })
}
