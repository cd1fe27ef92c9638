package session

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/session/ulid"
)

// FindError means that a name does not identify exactly one checkpoint. It wraps ErrNoCheckpoint or ErrAmbiguous.
type FindError struct {
	Name string // name that was passed to Find
	Err  error  // error that is or wraps ErrNoCheckpoint or ErrAmbiguous
}

// Error returns the message. It cuts off a long name.
func (e *FindError) Error() string { return fmt.Sprintf("find checkpoint %.80q: %v", e.Name, e.Err) }

// Unwrap returns ErrNoCheckpoint or ErrAmbiguous.
func (e *FindError) Unwrap() error { return e.Err }

// headName is a name for Find. It stands for the oldest checkpoint that has the same HEAD as the newest checkpoint.
const headName = "HEAD"

// Find returns the checkpoint that a user means by name. It returns a *FindError if the name stands for no checkpoint,
// or for more than one. The following forms of names are tried in this order:
//
//	@, @~N      the newest checkpoint, or the Nth before it; "" is the same as @
//	NAME        the checkpoint of the pin NAME, or the adopted checkpoint of another session with the ID NAME
//	HEAD        the oldest checkpoint with the same HEAD as the newest checkpoint
//	10m, 2h30m  the newest checkpoint of at least that age (w, d, h, m, s; without leading zero, since IDs begin with one)
//	14:05, ...  the newest checkpoint that was made at or before that time (ParseTime)
//	01M80Q4...  the checkpoint with that ID, or the only checkpoint whose ID begins with these digits
//
// The names of turns of the transcript are resolved by package transcript, which calls Find for all other names.
func (l *Lanes) Find(name string) (Checkpoint, error) {
	if back, ok := strings.CutPrefix(name, "@"); ok || name == "" {
		return l.findBack(name, back)
	}
	// An adopted checkpoint belongs to another session, so EachCheckpoint does not list it.
	for _, ref := range []string{PinPrefix(l.session) + name, AdoptedRef(l.session, CheckpointID(name))} {
		if !refname.Valid(ref) {
			continue
		}
		id, err := l.refs.Ref(ref)
		if err != nil {
			return Checkpoint{}, fmt.Errorf("find checkpoint %.80q: %w", name, err)
		}
		if !id.IsZero() {
			return l.CheckpointAt(id)
		}
	}
	if name == headName {
		return l.findHead()
	}
	if at, ok := ParseTime(name, time.Now()); ok {
		return l.findTime(name, at)
	}
	return l.findID(name)
}

// findBack returns the checkpoint for the names "@" and "@~N". The parameter back is the text after "@".
func (l *Lanes) findBack(name, back string) (Checkpoint, error) {
	n, err := parseBack(back)
	if err != nil {
		return Checkpoint{}, &FindError{name, err}
	}
	list, err := l.Checkpoints(n + 1)
	if err == nil && len(list) <= n {
		err = &FindError{name, fmt.Errorf("%w: session has only %d checkpoints", ErrNoCheckpoint, len(list))}
	}
	if err != nil {
		return Checkpoint{}, err
	}
	return list[n], nil
}

// findHead returns the oldest checkpoint that has the same HEAD as the newest checkpoint. The returned checkpoint
// contains the files as they were after the commit of HEAD was made or first checked out.
func (l *Lanes) findHead() (found Checkpoint, err error) {
	var head object.ID
	err = l.EachCheckpoint(func(p Checkpoint) bool {
		if found.ID == "" {
			head = p.Head
		}
		if p.Head == head {
			found = p
		}
		return true
	})
	if err == nil && found.ID == "" {
		err = &FindError{headName, ErrNoCheckpoint}
	}
	return found, err
}

// findTime returns the newest checkpoint that was made at or before the time at. If all checkpoints are later, it
// returns an error that states the time of the oldest checkpoint.
func (l *Lanes) findTime(name string, at time.Time) (found Checkpoint, err error) {
	var oldest Checkpoint
	err = l.EachCheckpoint(func(p Checkpoint) bool {
		// The time in the ID is exact to the millisecond, and the time of the commit only to the second.
		if oldest = p; !p.ID.Time().After(at) {
			found = p
		}
		return found.ID == ""
	})
	switch {
	case err != nil || found.ID != "":
	case oldest.ID == "":
		err = &FindError{name, ErrNoCheckpoint}
	default:
		first := oldest.Time.Local().Format(time.DateTime)
		err = &FindError{name, fmt.Errorf("%w: oldest checkpoint was made at %s", ErrNoCheckpoint, first)}
	}
	return found, err
}

// findID returns the checkpoint whose ID begins with name, in upper or lower case.
func (l *Lanes) findID(name string) (Checkpoint, error) {
	prefix := strings.ToUpper(name)
	if len(prefix) > ulid.Len || !ulid.IsDigits(prefix) {
		return Checkpoint{}, &FindError{name, ErrNoCheckpoint}
	}
	var found []Checkpoint
	err := l.EachCheckpoint(func(p Checkpoint) bool {
		// a checkpoint may be in two lanes
		if strings.HasPrefix(string(p.ID), prefix) && (len(found) == 0 || found[0].ID != p.ID) {
			found = append(found, p)
		}
		// Checkpoints arrive newest first, so all later ones have IDs that sort before the prefix.
		return len(found) < 2 && string(p.ID) >= prefix
	})
	switch {
	case err != nil:
		return Checkpoint{}, fmt.Errorf("find checkpoint %.80q: %w", name, err)
	case len(found) == 0:
		return Checkpoint{}, &FindError{name, ErrNoCheckpoint}
	case len(found) > 1:
		return Checkpoint{}, &FindError{name, ErrAmbiguous}
	}
	return found[0], nil
}

// parseBack parses the text after "@": it returns 0 for "", and N for "~N".
func parseBack(text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(text, "~"), 10, 31)
	if err != nil || text[0] != '~' {
		return 0, ErrNoCheckpoint
	}
	return int(n), nil
}

// ageUnits maps the units of an age, as in "2h30m", to their durations.
var ageUnits = map[byte]time.Duration{'w': 7 * 24 * time.Hour, 'd': 24 * time.Hour, 'h': time.Hour, 'm': time.Minute,
	's': time.Second}

// ParseTime parses a time in one of these forms: an age (90s, 10m, 2h30m, 3d, 1w); a time of day (14:05, 14:05:30),
// which means the time today or, if that is in the future, yesterday; a date, which means the end of that day; a date
// and a time; or RFC 3339. A text without a time zone is in the time zone of the parameter now. ParseTime returns false
// for any other text.
func ParseTime(text string, now time.Time) (time.Time, bool) {
	if age, ok := parseAge(text); ok {
		return now.Add(-age), true
	}
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return at, true
	}
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02T15:04", time.DateTime, "2006-01-02 15:04"} {
		if at, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return at, true
		}
	}
	if day, err := time.ParseInLocation(time.DateOnly, text, now.Location()); err == nil {
		return day.AddDate(0, 0, 1).Add(-time.Nanosecond), true
	}
	// time.Parse returns a time of day in the year 0, so the date is taken from now.
	for _, layout := range []string{"15:04", time.TimeOnly} {
		clock, err := time.Parse(layout, text)
		if err != nil {
			continue
		}
		y, m, d := now.Date()
		at := time.Date(y, m, d, clock.Hour(), clock.Minute(), clock.Second(), 0, now.Location())
		if at.After(now) {
			at = time.Date(y, m, d-1, clock.Hour(), clock.Minute(), clock.Second(), 0, now.Location())
		}
		return at, true
	}
	return time.Time{}, false
}

// parseAge parses an age such as "2h30m": numbers without a leading zero, each followed by a unit. It returns false for
// any other text, and for an age of more than maxAge.
func parseAge(text string) (age time.Duration, ok bool) {
	for text != "" {
		digits := 0
		for digits < len(text) && text[digits] >= '0' && text[digits] <= '9' {
			digits++
		}
		if digits == 0 || digits > 9 || digits == len(text) || text[0] == '0' || ageUnits[text[digits]] == 0 {
			return 0, false
		}
		// The limit also prevents an overflow of the multiplication below.
		n, err := strconv.Atoi(text[:digits])
		if err != nil || int64(n) > int64(maxAge/ageUnits[text[digits]]) {
			return 0, false
		}
		if age += time.Duration(n) * ageUnits[text[digits]]; age > maxAge {
			return 0, false
		}
		text, ok = text[digits+1:], true
	}
	return age, ok
}

// maxAge is the longest age that a name can have: about a hundred years.
const maxAge = 100 * 365 * 24 * time.Hour

// errReservedName means that a name cannot be used for a pin, because Find interprets it as a time, as HEAD or as a
// turn.
var errReservedName = errors.New("name stands for a time, HEAD or a turn")

// ValidPin returns an error if name cannot be the name of a new pin: if ValidName refuses it, or if Find interprets it
// as a time or as HEAD. Existing pins with such names can still be found.
func ValidPin(name string) error {
	if err := ValidName(name); err != nil {
		return err
	}
	if _, isTime := ParseTime(name, time.Now()); isTime || strings.EqualFold(name, headName) {
		return fmt.Errorf("invalid pin name %q: %w", name, errReservedName)
	}
	return nil
}
